/** Calls to the service. Addresses are relative, so that the page works behind a path prefix too. */

import { load, save } from "./storage.js";
import { current, update } from "./store.js";

/** @typedef {import("./types.js").Problem} Problem */

const KEY = "headroom-key";

export const FACTS = "playground/facts"; // what is served, with its version

/** @type {(version: string) => void} */
let hearVersion = () => {};

/** @param {(version: string) => void} hear is told with each other answer the version of what the service then serves */
export function onFactsVersion(hear) {
  hearVersion = hear;
}

export class ApiError extends Error {
  /** @param {Problem} problem */
  constructor(problem) {
    super(problem.message);
    this.problem = problem;
  }
}

/** @returns {string | null} the API key, which the browser keeps until the tab is closed */
export function storedKey() {
  return load("sessionStorage", KEY);
}

/** @param {string | null} key */
export function storeKey(key) {
  save("sessionStorage", KEY, key);
}

/** @returns {Promise<boolean>} whether the service refuses requests without a key; false if it cannot be reached */
export async function needsKey() {
  const response = await fetch("v1/models").catch(() => null);
  return response?.status === 401;
}

/** @returns {Promise<boolean>} whether the service answers without a key; false if it cannot be reached */
export async function isKeyless() {
  const response = await fetch("v1/models").catch(() => null);
  return response?.ok ?? false;
}

/**
 * @param {string} path such as `v1/compare`
 * @param {{body?: unknown, signal?: AbortSignal}} [options] with a body it is a POST
 * @returns {Promise<any>} the answer's JSON
 * @throws {ApiError} for every answer that is no success, and where there is none; an abort stays an abort
 */
export async function call(path, options = {}) {
  return JSON.parse(await text(path, options));
}

/**
 * @param {string} path @param {{body?: unknown, signal?: AbortSignal}} [options] as for `call`
 * @returns {Promise<string>} the answer's text
 * @throws {ApiError} as `call`
 */
export async function text(path, { body, signal } = {}) {
  const key = storedKey();
  /** @type {Record<string, string>} */
  const headers = { "x-headroom-playground": "1" }; // the answer then names the version of the facts
  if (key) headers.authorization = `Bearer ${key}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const method = body === undefined ? "GET" : "POST";
  let response;
  let answer;
  try {
    response = await fetch(path, { method, headers, signal, body: JSON.stringify(body) });
    answer = await response.text(); // a connection can also break in the middle of an answer
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError({
      message: "The service cannot be reached.",
      param: null,
      status: 0,
      retryAt: Date.now() + 3000,
    });
  }
  const version = response.headers.get("x-headroom-facts");
  if (version && path !== FACTS) hearVersion(version);
  // A late answer to a request with an earlier key says nothing about the present one.
  if (key === storedKey()) hearOfKey(response, key);
  if (response.ok) return answer;
  throw new ApiError(problemOf(response, answer));
}

/** @param {Response} response @param {string | null} key that it was asked with */
function hearOfKey(response, key) {
  const known = current().key;
  // Asks once: a person who left the dialog opens it again.
  if (response.status === 401) update({ key: { ...known, asking: known.asking || !known.needed, wrong: key !== null, needed: true } });
  else if (response.ok && known.needed) update({ key: { asking: false, wrong: false, admin: false, needed: false } });
}

/** @param {Response} response @param {string} answer its body @returns {Problem} */
function problemOf(response, answer) {
  let error;
  try {
    ({ error } = JSON.parse(answer));
  } catch {
    // A proxy in between may answer in words or a JSON of its own; the status says enough.
  }
  const message = typeof error?.message === "string" ? error.message : `The service answered ${response.status}.`;
  const seconds = Number(response.headers.get("retry-after")) || 2;
  // Some errors come back on every try: the same texts need the same time and the same memory.
  const passing = [429, 502, 503].includes(response.status) && error?.type !== "out_of_memory";
  return { message, param: error?.param ?? null, status: response.status, retryAt: passing ? Date.now() + 1000 * seconds : null };
}

/** @param {unknown} error @returns {Problem} */
export function asProblem(error) {
  if (error instanceof ApiError) return error.problem;
  console.error(error);
  return { message: "The page failed. Reload it.", param: null, status: -1, retryAt: null };
}
