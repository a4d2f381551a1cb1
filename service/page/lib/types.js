/** The shapes that the page passes around; the service's answers are described in /openapi.json. */

/**
 * @typedef {object} Column A mask or a variant whose scores are shown.
 * @property {number} id
 * @property {import("./mask.js").Mask | null} mask null: the variant's own, which the grid cannot show
 * @property {string | null} variant a variant's name in place of a mask
 * @property {string | null} name what it was picked as, such as `pruned20`; null after a change by hand
 * @property {string | null} unreadable a sentence: a mask could not be read, so every head is on; null after
 *   a change
 */

/**
 * @typedef {object} HeadFinding What the study says of a head; the changes are those with it alone off.
 * @property {number} layer
 * @property {number} head
 * @property {Record<string, number | null>} delta null: the metric has no value
 * @property {Record<string, [number | null, number | null]>} interval null ends: too few queries for one
 * @property {number | null} p_adjusted null as the interval
 * @property {Record<string, number>} roles
 */

/**
 * @typedef {object} Study
 * @property {Record<string, string>} [metrics] their names, the one that shades the heads first
 * @property {HeadFinding[]} heads
 * @property {string} data
 * @property {number} queries
 * @property {number} pairs
 */

/** @typedef {{id: string, spec: string, heads_on: number, heads: number}} MaskInfo */
/** @typedef {{name: string, model: string, model_index: number, head_mask: MaskInfo, sliced: boolean, default: boolean, cascade: object[] | null}} Variant */

/**
 * @typedef {object} Model
 * @property {string} name
 * @property {number} layers
 * @property {number} heads
 * @property {number} max_tokens
 * @property {string[] | null} grades
 * @property {string | null} label_order_note which label counts as best, if that is a guess
 * @property {"softmax" | "sigmoid" | "identity"} score_activation
 * @property {string} device
 * @property {string} dtype
 * @property {{layers: number, heads: number} | null} generator its query generator
 */

/**
 * @typedef {object} Facts What is loaded.
 * @property {string} version changes with the live config and with the model
 * @property {Model[]} models the loaded checkpoints, as variants' `model_index` counts them
 * @property {Model} model the service's own
 * @property {Variant[]} variants
 * @property {{name: string, head_mask: MaskInfo}[]} masks
 * @property {Study | null} study
 */

/**
 * @typedef {object} Result
 * @property {number} index
 * @property {number | null} grade
 * @property {string | null} label
 * @property {number | null} expected_grade
 * @property {number} score
 * @property {number} raw_score what ranks the titles
 * @property {number[] | null} probabilities
 * @property {number} tokens
 * @property {number} unknown_tokens
 * @property {boolean} truncated
 * @property {boolean} [scored] false: no network scored the title, and the score says nothing but its place
 */

/** @typedef {{head_mask: MaskInfo, variant: string, results: Result[], degraded: boolean}} AnswerColumn */

/**
 * @typedef {object} Answer One comparison, in the order of the page's columns.
 * @property {string[]} titles
 * @property {number[]} ids those of the columns
 * @property {AnswerColumn[]} columns
 * @property {Model[]} models those that gave the columns' scores
 */

/**
 * @typedef {object} Problem
 * @property {string} message
 * @property {string | null} param
 * @property {number} status 0: the service could not be reached
 * @property {number | null} retryAt milliseconds since 1970; null: trying again would not help
 */

/**
 * @typedef {object} State
 * @property {string} view
 * @property {"system" | "light" | "dark"} theme
 * @property {number} step the step of a first visit that is shown, from 1; 0: none
 * @property {{asking: boolean, wrong: boolean, admin: boolean, needed: boolean}} key needed: the service refused a
 *   request for want of a valid one
 * @property {Facts | null} facts
 * @property {Problem | null} factsProblem
 * @property {string} query
 * @property {string[]} titles
 * @property {Column[]} columns
 * @property {number} active index of the column that the grid edits
 * @property {number | null} baseline index of the column that the others are measured against
 * @property {number[]} selection indices of heads, row by row
 * @property {number} seed
 * @property {Answer | null} answer
 * @property {boolean} busy
 * @property {Problem | null} problem
 * @property {AttentionState} attention
 * @property {string | null} experiment
 * @property {Partial<import("../experiments/start.js").Plan> | null} start what is filled in to start an experiment; null: the
 *   form is not open
 */

/**
 * @typedef {object} AttentionState
 * @property {number} title index of the title
 * @property {number} layer the chosen head's; a network that lacks it shows the nearest one
 * @property {number} head
 * @property {boolean} special whether special tokens, such as [SEP], are shown
 * @property {boolean} words whether word pieces are joined
 * @property {boolean} masked whether the active mask is applied
 */

// What /v1/experiments answers, as far as the page shows it.

/** @typedef {{name: string, variant: string, weight: number, control: boolean, exposures: number}} Arm */
/** @typedef {{arm: string, replicas?: number, requests: number, error_rate: number | null, slow_rate: number | null, score_shift: number | null}} Guardrail */
/**
 * @typedef {{time: number, kind: string, arm: string | null, traffic: number | null, actor: string, reason: string,
 *   detail: string}} Action
 */

/**
 * @typedef {object} Experiment
 * @property {string} name
 * @property {"ab" | "interleave"} kind
 * @property {boolean} in_config
 * @property {string} status
 * @property {string | null} paused why it is
 * @property {number} traffic
 * @property {number | null} started
 * @property {[number, number]} slots
 * @property {number} shadow
 * @property {Arm[]} arms
 * @property {string[]} rolled_back
 * @property {string | null} shipped
 * @property {number | null} sample_ratio_p
 * @property {Guardrail[]} guardrails
 */

/** @typedef {Experiment & {history: Action[]}} Detail */

export {};
