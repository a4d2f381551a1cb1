/** What /v1/experiments answers, as far as the page shows it. */

/** @typedef {{name: string, variant: string, weight: number, control: boolean, exposures: number}} Arm */
/** @typedef {{arm: string, requests: number, error_rate: number | null, p99_ms: number | null, score_shift: number | null}} Guardrail */
/**
 * @typedef {{time: number, kind: string, arm: string | null, traffic: number | null, actor: string, reason: string,
 *   detail: string}} Action
 */

/**
 * @typedef {object} Metric
 * @property {string} metric
 * @property {number} units
 * @property {number} control_units
 * @property {number | null} value
 * @property {number | null} control_value
 * @property {number | null} difference
 * @property {number | null} low
 * @property {number | null} high
 * @property {number | null} relative
 * @property {number | null} relative_low
 * @property {number | null} relative_high
 * @property {number} p_value
 * @property {number | null} margin
 * @property {boolean} margin_relative
 * @property {"higher" | "lower"} better
 * @property {string} decision
 * @property {string} text
 */

/** @typedef {{requests: number, units: number, mean: number, low: number | null, high: number | null}} Measure */
/** @typedef {{pairs: number, abs_delta_p50: number | null, abs_delta_p99: number | null, measures: Record<string, Measure>, text: string}} Shadow */

/**
 * @typedef {object} Report
 * @property {number} time
 * @property {string} control
 * @property {number} planned_units
 * @property {{sequential_p: number, alarm: boolean, text: string,
 *   epochs: {traffic: number, units: Record<string, number>, expected: Record<string, number>, sequential_p: number}[]}} sample_ratio
 * @property {{arm: string, metrics: Metric[], shadow: Shadow | null}[]} arms
 * @property {string} recommendation
 * @property {string} text
 */

/**
 * @typedef {object} Experiment
 * @property {string} name
 * @property {string} status
 * @property {number} traffic
 * @property {number | null} next_step
 * @property {number | null} started
 * @property {[number, number]} slots
 * @property {number} shadow
 * @property {Arm[]} arms
 * @property {string[]} rolled_back
 * @property {string | null} shipped
 * @property {number | null} sample_ratio_p
 * @property {Guardrail[]} guardrails
 */

/** @typedef {Experiment & {history: Action[], report: Report | null}} Detail */

/**
 * @typedef {{time: number, metrics: {arm: string, metric: string, difference: number | null, low: number | null,
 *   high: number | null, relative: number | null, relative_low: number | null, relative_high: number | null}[]}} Look
 */

export {};
