"""A/B tests and interleaving in the server; docs/experiments-data.md says what is stored, and what it means.

Read the files in this order:

- Who gets what: `buckets` and `interleaving` (the hashes), `definition` (the config's entry), `state` (an
  experiment now), `assignment`.
- What is in force: `log` (computes it from rows), `rules` (which rows may be added), `ledger` (a replica's
  copy).
- What is stored: `events` (the facts), `tables`, `database`, `store`, `facts`, `writer` (adds exposures and
  lists in the background), `outcomes`, `export`, `retention` (deletes what is too old).
- What a report says: `estimates` (statistics), `measure` (reads the facts once, and adds them up over units),
  `clicks` and `preference` (of interleaved lists), `shadow_report`, `verdicts` (sentences), `analysis` (all
  of it), `report` (the values), `report_page` (HTML and text), `report_cache`.
- Which arm goes back to control: `windows` (an arm's last minute, on all replicas), `guardrails`.
- What runs: `live` (a replica's part), `admin` (the routes).
- How many units it needs: `plan`, and `drawn_lists` (how much lists would differ).
"""
