"""Any number of strings through a function of one batch."""

from collections.abc import Callable, Sequence

from tqdm import tqdm


def translate_in_batches(
    translate: Callable[[list[bytes]], list[str]],
    texts: Sequence[str],
    batch_size: int = 64,
    progress: bool = False,
) -> list[str]:
    """Apply `translate` to batches of similar length.

    Args:
        translate: From the UTF-8 of a batch's texts to their translations.
        texts: Source strings.
        batch_size: Sentences translated at once.
        progress: Show a progress bar on stderr.

    Returns:
        One translation for each text, in the same order.
    """
    translations = [""] * len(texts)
    encoded = [text.encode(errors="surrogatepass") for text in texts]  # lone ones: invalid UTF-8
    by_length = sorted(range(len(texts)), key=lambda i: len(encoded[i]))
    with tqdm(total=len(texts), unit="sentence", disable=not progress, leave=False) as bar:
        for start in range(0, len(texts), batch_size):
            chosen = by_length[start : start + batch_size]
            batch = translate([encoded[i] for i in chosen])
            for i, translation in zip(chosen, batch, strict=True):
                translations[i] = translation
            bar.update(len(chosen))
    return translations
