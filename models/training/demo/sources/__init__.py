"""Makes the training data from the raw files of public sources.

Each source has a module, which says where its files come from and what they look like: `esci`, `chorus`,
`dbpedia`, `socrata` (judged pairs) and `wordnet` (text). `public.yaml` lists every raw file by repository,
commit and SHA-256; models.training.demo.fetch downloads them. MSRD's movies are used unchanged.

From these files `prepare` writes exactly the data that the shipped model was trained on, sampled pairs
included: `prepared` in public.yaml holds the SHA-256 of each file, and fetch compares.
"""

import json
from dataclasses import asdict
from pathlib import Path

from models.training.demo.sources import chorus, dbpedia, esci, socrata, wordnet
from models.training.demo.sources.judging import merged
from models.training.demo.sources.writing import write_lines, write_whole

# The order matters: a pair that two sources judged is listed under the first.
_JUDGED = {
    "esci_us_150q": ("esci_us_150q", esci.judged_pairs),
    "esci_us_150q:random_neg": ("esci_us_150q", esci.unrelated_pairs),
    "esci_extra": ("esci_us_150q", esci.extra_pairs),
    "chorus_icecat": ("chorus_icecat", chorus.judged_pairs),
    "dbpedia_entity_v2": ("dbpedia_entity_v2", dbpedia.judged_pairs),
    "socrata_arcs": ("socrata_arcs", socrata.judged_pairs),
}
_TEXT = {
    "esci_us_150q": esci.text_lines,
    "chorus_icecat": chorus.text_lines,
    "oewn_text": wordnet.text_lines,
}
_COPIED = {
    "esci_us_150q/products.json.gz": "esci_us_150q/ubi_ecommerce_products.json.gz",
    "msrd_movies/movies-corpus.jsonl.gz": "msrd_movies/movies-corpus.jsonl.gz",
    "msrd_movies/movies-judgments.tsv.gz": "msrd_movies/movies-judgments.tsv.gz",
}


def prepare(raw: Path, out: Path) -> None:
    """Write into `out` every file that models.training.data reads.

    raw: the files of public.yaml, each as SOURCE/NAME.
    """
    for copy, original in _COPIED.items():
        write_whole(out / copy, (raw / original).read_bytes())
    for source, text_lines in _TEXT.items():
        write_lines(out / source / "text.txt.gz", text_lines(raw / source))
    titles = (json.dumps(row, ensure_ascii=False) for row in chorus.titles(raw / "chorus_icecat"))
    write_lines(out / "chorus_icecat" / "products_titles.jsonl.gz", titles)
    judged = merged({name: pairs(raw / folder) for name, (folder, pairs) in _JUDGED.items()})
    write_lines(out / "graded.jsonl.gz", (json.dumps(asdict(pair), ensure_ascii=False) for pair in judged))
