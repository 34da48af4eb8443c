# SPDX-License-Identifier: Apache-2.0
"""What PUT and PUSH messages have in common: how a message is divided, and what can be wrong with that."""

from __future__ import annotations

from bmq.errors import ProtocolError
from bmq.wire.codec import PUT_HEADER
from bmq.wire.constants import Compression

__all__ = ["read_shape", "wrong_data", "wrong_length"]

_OPTIONS, _CAT, _HEADER = (
    PUT_HEADER.fields[name] for name in ("optionsWords", "compressionAlgorithmType", "headerWords")
)
# There are few, and they come with every event: what was read is kept.
_known: dict[tuple[str, int], tuple[int, int, int]] = {}
_KNOWN = 1024


def read_shape(shape: int, kind: str, least: int, offset: int) -> tuple[int, int, int]:
    """Read a header's second word, which is the same in PUT and PUSH messages.

    Args:
        shape: the word.
        kind: whose header it is, "Put" or "Push", for the error.
        least: how many words the header has at least.
        offset: where the message starts, for the error.

    Returns:
        The compression, the header's bytes, and the header's and the options' bytes together.

    Raises:
        ProtocolError: the header is too short, or the compression is unknown.
    """
    found = _known.get((kind, shape))
    if found is not None:
        return found
    header_words = shape >> _HEADER.shift & _HEADER.mask
    compression = shape >> _CAT.shift & _CAT.mask
    if header_words < least:
        raise ProtocolError(
            f"{header_words} words are too few", field=f"{kind}Header.headerWords", offset=offset + 7
        )
    if compression > Compression.ZLIB:
        raise ProtocolError(
            f"{compression} is no compression",
            field=f"{kind}Header.compressionAlgorithmType",
            offset=offset + 7,
        )
    option_words = shape >> _OPTIONS.shift & _OPTIONS.mask
    if len(_known) >= _KNOWN:
        _known.clear()
    found = _known[kind, shape] = compression, header_words * 4, (header_words + option_words) * 4
    return found


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
