/** Each arm's metrics against control: the interval now, the sentence, and the interval's way here. */

import { Chart } from "../lib/chart.js";
import { count, exact, percent, short, signed, unbroken, when } from "../lib/format.js";
import { html } from "../lib/html.js";

/** @typedef {import("../lib/types.js").Report} Report */
/** @typedef {import("../lib/types.js").Metric} Metric */

const DECISIONS = /** @type {Record<string, string>} */ ({
  better: "better",
  good_enough: "good enough",
  worse_within_margin: "worse, within the margin",
  worse: "worse",
  too_bad: "too bad",
  undecided: "undecided",
});

/** @param {{report: Report}} props */
export function Findings({ report }) {
  return html`
    <section>
      <h2>${report.arms[0]?.metrics[0]?.preference ? `Preference over ${report.control}` : `Effects against ${report.control}`}</h2>
      ${report.arms.map(({ arm, metrics }) =>
        metrics.length
          ? metrics.map((metric, i) => html`
              <${Finding} key=${`${arm} ${metric.metric}`} arm=${arm} metric=${metric} report=${report} first=${i === 0} />`)
          : html`<p class="soft">No metric is declared.</p>`)}
      <p class="soft">The bands are confidence sequences: they hold at all times together, so looking is always allowed.</p>
    </section>`;
}

/** @param {{arm: string, metric: Metric, report: Report, first: boolean}} props */
function Finding({ arm, metric, report, first }) {
  const { margin } = metric;
  // Where control has next to nothing there is an interval in the metric's own unit only.
  const inPercent = metric.relative !== null && (metric.relative_low !== null || metric.low === null);
  const relative = inPercent && (margin === null || metric.margin_relative);
  const write = (/** @type {number} */ value) => (relative ? value === 0 ? "0 %" : `${signed(100 * value, Math.abs(value) < 0.095 ? 1 : 0)} %` : short(value));
  const all = [...report.looks, { time: report.end ?? report.time, effects: [{ ...metric, arm }] }];
  const rows = all.map((look) => look.effects.find((one) => one.arm === arm && one.metric === metric.metric));
  const of = (/** @type {"difference" | "low" | "high"} */ name) => {
    const key = relative ? { difference: "relative", low: "relative_low", high: "relative_high" }[name] : name;
    return rows.map((row) => /** @type {any} */ (row)?.[key] ?? null);
  };
  const series = [{ name: arm, values: of("difference"), low: of("low"), high: of("high") }];
  const harm = metric.better === "higher" ? -1 : 1;
  // A relative margin has no place beside a difference in the metric's own unit.
  const marks = margin === null || metric.margin_relative !== relative ? [] : [{ value: harm * margin, name: "margin" }];
  return html`
    <div class="finding">
      <div>
        <h3><b>${arm}</b> on <b>${metric.metric}</b>${first ? " · decides" : ""}</h3>
        <p class=${`decision ${metric.decision}`}>${DECISIONS[metric.decision] ?? metric.decision}</p>
        ${report.text.includes(metric.text) ? null : html`<p>${unbroken(metric.text)}</p>`}
        <${Interval} change=${of("difference").at(-1)} low=${of("low").at(-1)} high=${of("high").at(-1)} margin=${marks[0]?.value ?? null} write=${write} />
        <dl class="pairs">
          ${metric.preference
            ? html`<${Votes} arm=${arm} control=${report.control} preference=${metric.preference} />`
            : html`<div><dt>${arm}</dt><dd>${short(metric.value, 4)}</dd></div>
                <div><dt>${report.control}</dt><dd>${short(metric.control_value, 4)}</dd></div>`}
          <div><dt>anytime-valid p</dt><dd>${short(metric.p_value, 2)}</dd></div>
          ${margin === null ? null : html`<div><dt>margin</dt><dd>${metric.margin_relative ? exact(margin) : String(margin)}</dd></div>`}
        </dl>
      </div>
      <${Chart} label=${metric.preference ? "Preference" : relative ? "Relative difference" : "Difference"} times=${all.map((look) => look.time)} series=${series}
        format=${write} settled=${true} clock=${(/** @type {number} */ time) => when(time).slice(5)} marks=${marks} />
    </div>`;
}

/** @param {{arm: string, control: string, preference: import("../lib/types.js").Preference}} props whose titles the units clicked */
function Votes({ arm, control, preference }) {
  const { wins, losses, ties, differing, impressions } = preference;
  return html`
    <div><dt>units preferring ${arm}</dt><dd>${count(wins)}</dd></div>
    <div><dt>units preferring ${control}</dt><dd>${count(losses)}</dd></div>
    <div><dt>units that clicked both alike</dt><dd>${count(ties)}</dd></div>
    <div><dt>lists that differ</dt><dd>${count(differing)} of ${count(impressions)}${impressions ? ` (${percent(differing / impressions, 1)})` : ""}</dd></div>`;
}

const WIDTH = 260;
const HEIGHT = 46;
const ROOM = 24; // for the labels at both ends

/**
 * The interval as it is now, with 0 and the margin.
 * @param {{change: number | null, low: number | null, high: number | null, margin: number | null,
 *   write: (value: number) => string}} props
 */
function Interval({ change, low, high, margin, write }) {
  if (low === null || high === null) return null;
  const ends = [0, low, high, margin ?? 0];
  const [first, last] = [Math.min(...ends), Math.max(...ends)];
  const x = (/** @type {number} */ value) => ROOM + ((WIDTH - 2 * ROOM) * (value - first)) / (last - first || 1);
  const isNear = margin !== null && Math.abs(x(margin) - x(0)) < 40; // the labels would touch
  return html`
    <svg class="interval" width=${WIDTH} height=${HEIGHT} role="img"
      aria-label=${`From ${write(low)} to ${write(high)}${margin === null ? "" : `, the margin is ${write(margin)}`}`}>
      <rect x=${x(low)} y="17" width=${Math.max(1, x(high) - x(low))} height="12" rx="2" />
      <line class="zero" x1=${x(0)} x2=${x(0)} y1="14" y2="32" /><text x=${x(0)} y="44">0</text>
      ${margin === null
        ? null
        : html`<line class="margin" x1=${x(margin)} x2=${x(margin)} y1="14" y2="32" />
            <text class="margin" x=${x(margin)} y=${isNear ? 11 : 44}>margin</text>`}
      ${change === null ? null : html`<circle cx=${x(change)} cy="23" r="4" />`}
    </svg>`;
}
