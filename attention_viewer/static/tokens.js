// Tokens for people: labels that show what can't be seen, words made of pieces, tokens to hide.

const SPACE = "\u2581"; // SentencePiece's mark of a space
const BYTE = /^<0x([0-9A-F]{2})>$/;
const PUNCTUATION = /^[\p{P}\p{S}]+$/u;
const INNER_PUNCTUATION = /^['’\-‐]$/u; // within a word: don't, well-known
const UNSEEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}\u00a0\u115f\u1160\u3164]/gu;
// Scripts without spaces between words.
const UNSPACED = /\p{Script=Han}|\p{Script=Hiragana}|\p{Script=Katakana}|\p{Script=Thai}/u;

/** Returns a text in which control, zero-width and direction characters can be seen. */
export function visible(text) {
  return text
    .replace(UNSEEN, (c) => `⟨${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`)
    .replace(/(\p{M}{3})\p{M}+/gu, "$1…"); // what is stacked higher would cover its neighbours
}

/** Returns a text of at most `length` characters. */
export function shorten(text, length = 24) {
  const characters = Array.from(text);
  return characters.length <= length ? text : characters.slice(0, length - 1).join("") + "…";
}

/** Returns whether a token is punctuation alone. */
function isPunctuation({ piece, isSpecial }) {
  const text = piece.replaceAll(SPACE, "");
  return !isSpecial && PUNCTUATION.test(text);
}

export const isCjk = (text) => UNSPACED.test(text) || /^[\u3000-\u303f\uff00-\uff65]+$/.test(text);

/** Returns what a group of pieces is shown as: {text, isContinuation, isSpecial, pieces}. */
function toLabel(tokens) {
  const joined = decodeBytes(tokens.map(({ piece }) => piece));
  const text = joined.replaceAll(SPACE, " ").trim() || joined.replaceAll(SPACE, "␣");
  const first = tokens[0].piece;
  return {
    text: visible(text),
    isSpecial: tokens[0].isSpecial,
    isContinuation: !tokens[0].isSpecial && /^\p{L}/u.test(first) && !isCjk(first),
    pieces: tokens.map(({ piece }) => visible(piece)),
  };
}

/** Joins pieces; bytes that together make up characters become these. */
function decodeBytes(pieces) {
  const bytes = pieces.filter((piece) => piece !== SPACE).map((piece) => BYTE.exec(piece));
  if (bytes.length < 2 || !bytes.every(Boolean)) return pieces.join("");
  return new TextDecoder().decode(Uint8Array.from(bytes, (match) => parseInt(match[1], 16)));
}

/**
 * Returns groups of indices of `tokens`, and a label for each.
 *
 * @param tokens Of a snapshot's sequence: {piece, isSpecial}.
 * @param words Whether the pieces of a word make one group.
 * @param hide Whether ends of sentence and punctuation are left out.
 */
export function group(tokens, { words, hide }) {
  const groups = [];
  tokens.forEach((token, i) => {
    if (hide && (token.isSpecial || isPunctuation(token))) return;
    const last = groups.at(-1);
    if (words && last?.at(-1) === i - 1 && continues(tokens[i - 1], token)) last.push(i);
    else groups.push([i]);
  });
  return { groups, labels: groups.map((indices) => toLabel(indices.map((i) => tokens[i]))) };
}

/** Returns whether a token belongs to the word of the one before. */
function continues(before, token) {
  if (before.isSpecial || token.isSpecial || token.piece.startsWith(SPACE)) return false;
  if (before.piece === SPACE) return true;
  const byte = BYTE.exec(token.piece);
  if (byte) return BYTE.test(before.piece) && (parseInt(byte[1], 16) & 0xc0) === 0x80;
  if (BYTE.test(before.piece)) return false;
  for (const { piece } of [before, token]) {
    const text = piece.replaceAll(SPACE, "");
    if (PUNCTUATION.test(text) && !INNER_PUNCTUATION.test(text)) return false;
  }
  return !isCjk(Array.from(before.piece).at(-1)) && !isCjk(Array.from(token.piece)[0]);
}
