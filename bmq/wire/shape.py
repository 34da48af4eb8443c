# SPDX-License-Identifier: Apache-2.0
"""The common shape of PUT and PUSH messages: the parts, and the errors in the sizes of parts."""

from __future__ import annotations

from enum import IntEnum

from bmq._caches import Cache
from bmq.errors import ProtocolError
from bmq.wire.codec import PUT_HEADER

#: The header word with the sizes of a message's parts, in the form of
#: :meth:`bmq.wire.codec.StructureCodec.words`.
SHAPE = "optionsWords+compressionAlgorithmType+headerWords"
_WORDS = PUT_HEADER.words(SHAPE)
_OPTIONS, _CAT, _HEADER = ((_WORDS.shift(name), _WORDS.mask(name)) for name in SHAPE.split("+"))
# Few distinct words exist, and every event repeats the same words: keep the parsed results.
_known: Cache[int, tuple[int, int, int]] = Cache("shapes of messages", 1024)


class Flaw(IntEnum):
    """The defect of a message that is delivered although no reader can read the message.

    The number replaces the message's compression, which has only three bits on the wire. Every reader looks
    at the compression first, and refuses unknown numbers with :func:`unreadable`.
    """

    PARTS = 8
    OPTIONS = 9
    PADDING = 10
    NO_DATA = 11


_FLAWS = {
    Flaw.PARTS: ("PushHeader.optionsWords", "the header and the options are longer than the message"),
    Flaw.OPTIONS: ("OptionHeader.words", "the options do not fit into their space"),
    Flaw.PADDING: ("PUSH padding", "the padding byte must be 1 to 4"),
    Flaw.NO_DATA: ("PushHeader.messageWords", "no application data"),
}


def unreadable(compression: int) -> ProtocolError:
    """Return the error of a message with an unknown compression or a :class:`Flaw`."""
    if compression in _FLAWS:
        field, text = _FLAWS[Flaw(compression)]
        return ProtocolError(text, field=field)
    return ProtocolError(f"{compression} is not a compression", field="compressionAlgorithmType")


def read_shape(shape: int) -> tuple[int, int, int]:
    """Read a header's second word, which is the same in PUT and PUSH messages.

    Returns:
        The compression, the size of the header, and the size of header and options together, in bytes.
    """
    found = _known.get(shape)
    if found is None:
        header_words = shape >> _HEADER[0] & _HEADER[1]
        option_words = shape >> _OPTIONS[0] & _OPTIONS[1]
        header = header_words * 4
        found = _known.keep(shape, (shape >> _CAT[0] & _CAT[1], header, header + option_words * 4))
    return found


def wrong_length(
    words: int, header: int, header_and_options: int, kind: str, offset: int, end: int
) -> ProtocolError:
    """Return the error of a message whose parts exceed the message, or that exceeds its event."""
    return ProtocolError(
        f"{words} words, of which {header // 4} header and {(header_and_options - header) // 4} options, "
        f"do not fit the {end - offset} bytes left",
        field=f"{kind}Header.messageWords",
        offset=offset,
    )
