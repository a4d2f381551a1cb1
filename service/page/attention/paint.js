/** Attention on a canvas: one pixel or square for each pair of tokens. */

const SHADES = 9;

/** @returns {[number, number, number][]} the theme's shades, from nothing to most */
function shades() {
  const style = getComputedStyle(document.documentElement);
  return Array.from({ length: SHADES }, (_, i) => {
    const hex = style.getPropertyValue(`--shade-${i}`).trim();
    const part = (/** @type {number} */ at) => parseInt(hex.slice(at, at + 2), 16);
    return [part(1), part(3), part(5)];
  });
}

/** @param {Float32Array} values @returns {number} what the darkest shade stands for */
export function largest(values) {
  return values.reduce((most, value) => Math.max(most, value), 1e-9);
}

/** @param {number} value @param {number} most @returns {number} 0 to 1; the root shows small values too */
export function strength(value, most) {
  return Math.sqrt(Math.min(1, value / most));
}

/**
 * @param {HTMLCanvasElement} canvas gets `size` × `size` pixels
 * @param {Float32Array} values @param {number} size @param {number} most what the strongest shade stands for
 */
export function paint(canvas, values, size, most) {
  canvas.width = canvas.height = Math.max(1, size);
  const context = canvas.getContext("2d");
  if (!context || !size) return;
  const colours = shades();
  const image = context.createImageData(size, size);
  values.forEach((value, i) => {
    const at = strength(value, most) * (SHADES - 1);
    const low = Math.min(SHADES - 2, Math.floor(at));
    for (let part = 0; part < 3; part++) {
      image.data[4 * i + part] = colours[low][part] + (at - low) * (colours[low + 1][part] - colours[low][part]);
    }
    image.data[4 * i + 3] = 255;
  });
  context.putImageData(image, 0, 0);
}
