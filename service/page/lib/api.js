/** Calls to the service. Addresses are relative, so that the page works behind a path prefix too. */

import { current, update } from "./store.js";

/** @typedef {import("./types.js").Problem} Problem */

const KEY = "headroom-key";

export class ApiError extends Error {
  /** @param {Problem} problem */
  constructor(problem) {
    super(problem.message);
    this.problem = problem;
  }
}

/** @returns {string | null} the API key, which the browser keeps until the tab is closed */
export function storedKey() {
  return sessionStorage.getItem(KEY);
}

/** @param {string | null} key */
export function storeKey(key) {
  if (key === null) sessionStorage.removeItem(KEY);
  else sessionStorage.setItem(KEY, key);
}

/**
 * @param {string} path such as `v1/compare`
 * @param {{body?: unknown, signal?: AbortSignal}} [options] with a body it is a POST
 * @returns {Promise<any>} the answer's JSON
 * @throws {ApiError} for every answer that is no success, and where there is none; an abort stays an abort
 */
export async function call(path, options = {}) {
  return (await send(path, options)).json();
}

/** @param {string} path @param {{signal?: AbortSignal}} [options] @returns {Promise<string>} */
export async function text(path, options = {}) {
  return (await send(path, options)).text();
}

/** @param {string} path @param {{body?: unknown, signal?: AbortSignal}} options */
async function send(path, { body, signal }) {
  const key = storedKey();
  /** @type {Record<string, string>} */
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  if (body !== undefined) headers["content-type"] = "application/json";
  const method = body === undefined ? "GET" : "POST";
  let response;
  try {
    response = await fetch(path, { method, headers, signal, body: JSON.stringify(body) });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError({
      message: "The service cannot be reached.",
      param: null,
      status: 0,
      retryAt: Date.now() + 3000,
    });
  }
  if (response.ok) return response;
  if (response.status === 401) update({ key: { ...current().key, asking: true, wrong: key !== null } });
  throw new ApiError(await problemOf(response));
}

/** @param {Response} response @returns {Promise<Problem>} */
async function problemOf(response) {
  let message = `The service answered ${response.status}.`;
  let param = null;
  try {
    ({ message, param } = (await response.json()).error);
  } catch {
    // A proxy in between may answer in words of its own; the status says enough.
  }
  const seconds = Number(response.headers.get("retry-after")) || 2;
  const passing = [429, 503, 504].includes(response.status);
  return { message, param, status: response.status, retryAt: passing ? Date.now() + 1000 * seconds : null };
}

/** @param {unknown} error @returns {Problem} */
export function asProblem(error) {
  if (error instanceof ApiError) return error.problem;
  console.error(error);
  return { message: "The page failed. Reload it.", param: null, status: -1, retryAt: null };
}
