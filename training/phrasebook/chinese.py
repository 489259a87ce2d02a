"""Chinese numerals: as read, before a measure word, or spelled digit by digit."""

DIGITS = "零一二三四五六七八九"
SPELLED_DIGITS = "〇一二三四五六七八九"
PLACES = ((1000, "千"), (100, "百"), (10, "十"), (1, ""))


def numeral(number: int) -> str:
    """Writes a number below ten thousand as it is read.

    A gap of zeros is read once, 10 to 19 start with 十, and 200 and 2000 take 两.

    Example:
        >>> numeral(15), numeral(105), numeral(230)
        ('十五', '一百零五', '两百三十')
    """
    if not 0 <= number < 10_000:
        raise ValueError(f"number must be in 0..9999, received {number}")
    if number == 0:
        return DIGITS[0]
    text, gap = "", False
    for size, place in PLACES:
        digit = number // size % 10
        if digit == 0:
            gap = bool(text)
            continue
        if gap:
            text += DIGITS[0]
            gap = False
        if size == 10 and digit == 1 and not text:
            text += place
        elif size >= 100 and digit == 2:
            text += "两" + place
        else:
            text += DIGITS[digit] + place
    return text


def counting_numeral(number: int) -> str:
    """Writes a number as it stands before a measure word: 两, not 二, for two."""
    return "两" if number == 2 else numeral(number)


def spelled(number: int) -> str:
    """Spells a number digit by digit, as years and room numbers are: 305 -> 三〇五."""
    return "".join(SPELLED_DIGITS[int(digit)] for digit in str(number))
