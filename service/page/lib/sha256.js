/**
 * SHA-256 (FIPS 180-4). crypto.subtle is missing on plain http except on localhost, and it is asynchronous.
 */

const ROUNDS = constants(64, (prime) => Math.cbrt(prime));
const START = constants(8, (prime) => Math.sqrt(prime));

/**
 * @param {Uint8Array} bytes
 * @returns {string} 64 hexadecimal digits
 */
export function sha256(bytes) {
  const state = Uint32Array.from(START);
  const words = padded(bytes);
  const schedule = new Uint32Array(64);
  for (let start = 0; start < words.length; start += 16) {
    schedule.set(words.subarray(start, start + 16));
    block(state, schedule);
  }
  return Array.from(state, (word) => word.toString(16).padStart(8, "0")).join("");
}

/**
 * @param {Uint32Array} state
 * @param {Uint32Array} w the block's 16 words, and room for 48 more
 */
function block(state, w) {
  for (let i = 16; i < 64; i++) {
    const s0 = turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ (w[i - 15] >>> 3);
    const s1 = turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ (w[i - 2] >>> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  let [a, b, c, d, e, f, g, h] = state;
  for (let i = 0; i < 64; i++) {
    const s1 = turn(e, 6) ^ turn(e, 11) ^ turn(e, 25);
    const t1 = (h + s1 + ((e & f) ^ (~e & g)) + ROUNDS[i] + w[i]) | 0;
    const s0 = turn(a, 2) ^ turn(a, 13) ^ turn(a, 22);
    const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
    [h, g, f, e, d, c, b, a] = [g, f, e, (d + t1) | 0, c, b, a, (t1 + t2) | 0];
  }
  [a, b, c, d, e, f, g, h].forEach((value, i) => (state[i] += value));
}

/** @param {number} word @param {number} bits */
function turn(word, bits) {
  return (word >>> bits) | (word << (32 - bits));
}

/** @param {Uint8Array} bytes */
function padded(bytes) {
  const view = new DataView(new ArrayBuffer(((bytes.length + 72) >> 6) << 6));
  bytes.forEach((byte, i) => view.setUint8(i, byte));
  view.setUint8(bytes.length, 0x80);
  view.setUint32(view.byteLength - 8, Math.floor(bytes.length / 2 ** 29));
  view.setUint32(view.byteLength - 4, bytes.length << 3);
  return Uint32Array.from({ length: view.byteLength / 4 }, (_, i) => view.getUint32(4 * i));
}

/**
 * The first 32 bits of the fractional parts of a root of the first primes.
 * @param {number} count @param {(prime: number) => number} root
 */
function constants(count, root) {
  const found = [];
  for (let n = 2; found.length < count; n++) {
    let prime = true;
    for (let divisor = 2; divisor * divisor <= n; divisor++) prime &&= n % divisor !== 0;
    if (prime) found.push(Math.floor((root(n) % 1) * 2 ** 32) >>> 0);
  }
  return Uint32Array.from(found);
}
