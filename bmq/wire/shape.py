# SPDX-License-Identifier: Apache-2.0
"""What PUT and PUSH messages have in common: how a message is divided, and what can be wrong with that."""

from __future__ import annotations

from enum import IntEnum

from bmq.errors import ProtocolError
from bmq.wire.codec import PUT_HEADER
from bmq.wire.constants import Compression

__all__ = [
    "SHAPE",
    "Flaw",
    "check_compression",
    "read_shape",
    "too_short",
    "unreadable",
    "wrong_data",
    "wrong_length",
]

#: The word of a header that says how a message is divided, as :meth:`bmq.wire.codec.StructureCodec.words`
#: takes the word.
SHAPE = "optionsWords+compressionAlgorithmType+headerWords"
_WORDS = PUT_HEADER.words(SHAPE)
_OPTIONS, _CAT, _HEADER = ((_WORDS.shift(name), _WORDS.mask(name)) for name in SHAPE.split("+"))
# There are few, and they come with every event: what was read is kept.
_known: dict[int, tuple[int, int, int]] = {}
_KNOWN = 1024


class Flaw(IntEnum):
    """The defect of a message that is delivered although no reader can read the message.

    The number takes the place of the message's compression, which has three bits on the wire. Every reader
    looks at the compression first, and refuses unknown numbers with :func:`unreadable`.
    """

    PARTS = 8
    OPTIONS = 9
    PADDING = 10
    NO_DATA = 11


_FLAWS = {
    Flaw.PARTS: ("PushHeader.optionsWords", "the header and the options are longer than the message"),
    Flaw.OPTIONS: ("OptionHeader.words", "the options do not fit the place they have"),
    Flaw.PADDING: ("PUSH padding", "the padding byte must be 1 to 4"),
    Flaw.NO_DATA: ("PushHeader.messageWords", "no application data"),
}


def unreadable(compression: int) -> ProtocolError:
    """Return the error of a message whose compression is unknown, or is a :class:`Flaw`."""
    if compression in _FLAWS:
        field, text = _FLAWS[Flaw(compression)]
        return ProtocolError(text, field=field)
    return ProtocolError(f"{compression} is no compression", field="compressionAlgorithmType")


def read_shape(shape: int) -> tuple[int, int, int]:
    """Read a header's second word, which is the same in PUT and PUSH messages.

    Returns:
        The compression, the header's bytes, and the header's and the options' bytes together.
    """
    found = _known.get(shape)
    if found is None:
        header_words = shape >> _HEADER[0] & _HEADER[1]
        option_words = shape >> _OPTIONS[0] & _OPTIONS[1]
        if len(_known) >= _KNOWN:
            _known.clear()
        found = _known[shape] = (
            shape >> _CAT[0] & _CAT[1],
            header_words * 4,
            (header_words + option_words) * 4,
        )
    return found


def too_short(header: int, kind: str, offset: int) -> ProtocolError:
    """Return the error of a header that is too short to have what a message needs."""
    return ProtocolError(
        f"{header // 4} words are too few", field=f"{kind}Header.headerWords", offset=offset + 7
    )


def check_compression(compression: int, kind: str, offset: int) -> None:
    """Refuse a compression that this version does not know.

    Raises:
        ProtocolError: the compression is unknown.
    """
    if compression > Compression.ZLIB:
        raise ProtocolError(
            f"{compression} is no compression",
            field=f"{kind}Header.compressionAlgorithmType",
            offset=offset + 7,
        )


def wrong_length(
    words: int, header: int, header_and_options: int, kind: str, offset: int, end: int
) -> ProtocolError:
    """Return the error of a message whose parts do not fit it, or that does not fit its event."""
    return ProtocolError(
        f"{words} words, of which {header // 4} header and {(header_and_options - header) // 4} options, "
        f"do not fit the {end - offset} bytes left",
        field=f"{kind}Header.messageWords",
        offset=offset,
    )


def wrong_data(pad: int, kind: str, offset: int, stop: int) -> ProtocolError:
    """Return the error of a message whose padding is wrong, or that has nothing but padding."""
    if not 1 <= pad <= 4:
        return ProtocolError(
            f"the padding byte is {pad}, must be 1 to 4", field=f"{kind.upper()} padding", offset=stop - 1
        )
    return ProtocolError("no application data", field=f"{kind}Header.messageWords", offset=offset)
