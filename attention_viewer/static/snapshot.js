// Reads the payload that summary.py describes.

const VERSION = 1;

// The weight that each byte stands for.
export const WEIGHTS = Float32Array.from({ length: 256 }, (_, code) => (code / 255) ** 2);

/** The attention of all heads of one kind. */
class AttentionMap {
  constructor({ name, rows, columns, shape, causal }, codes) {
    Object.assign(this, { name, rows, columns, causal, codes });
    [this.layers, this.heads, this.numRows, this.numColumns] = shape;
  }

  /** Returns the bytes of one head, row by row. */
  codesOf([layer, head]) {
    const size = this.numRows * this.numColumns;
    const start = (layer * this.heads + head) * size;
    return this.codes.subarray(start, start + size);
  }

  /** Returns the mean weights of some heads, row by row. */
  mean(heads) {
    const sum = new Float32Array(this.numRows * this.numColumns);
    for (const head of heads) {
      const codes = this.codesOf(head);
      for (let i = 0; i < sum.length; i++) sum[i] += WEIGHTS[codes[i]];
    }
    return sum.map((value) => value / heads.length);
  }

  /** Returns [layer, head] of all heads. */
  allHeads() {
    return Array.from({ length: this.layers * this.heads }, (_, i) => [
      Math.floor(i / this.heads),
      i % this.heads,
    ]);
  }
}

/** Returns { texts, sequences, maps: {name: AttentionMap}, bytes }; throws what is wrong. */
export async function decodeSnapshot(payload) {
  const stream = new Blob([payload]).stream().pipeThrough(new DecompressionStream("gzip"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  if (new TextDecoder().decode(bytes.subarray(0, 4)) !== "ATTN") throw new Error("no snapshot");
  const length = new DataView(bytes.buffer).getUint32(4, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length)));
  if (header.version > VERSION) {
    throw new Error(`format ${header.version}; this viewer reads formats up to ${VERSION}`);
  }
  const maps = {};
  let offset = 8 + length;
  for (const map of header.maps) {
    const size = map.shape.reduce((a, b) => a * b);
    if (offset + size > bytes.length) throw new Error("weights are missing");
    maps[map.name] = new AttentionMap(map, bytes.subarray(offset, offset + size));
    offset += size;
  }
  const sequences = Object.fromEntries(
    Object.entries(header.sequences).map(([name, { pieces, special }]) => [
      name,
      pieces.map((piece, i) => ({ piece, isSpecial: special.includes(i) })),
    ]),
  );
  return { texts: header.texts, sequences, maps, bytes: bytes.length };
}
