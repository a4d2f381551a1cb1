"""Teaches a student and writes its checkpoint with what it learnt and what it costs: `headroom distil`."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from headroom.models.checkpoint.tensors import TensorDict
from headroom.models.checkpoint.tokenizer import PairTokenizer
from headroom.models.classifier import Classifier
from headroom.models.compress.prune import write_checkpoint
from headroom.models.device import resolve_device
from headroom.models.files import Json, write_whole
from headroom.models.learner import Learner
from headroom.models.terminal import ProgressBar
from headroom.models.training.distil import layers, report
from headroom.models.training.distil.job import DistilOptions, Job, is_plain_encoder, mask_of, write_pairs
from headroom.models.training.distil.lessons import (
    BATCH_PAIRS,
    SWAPPED_SHARE,
    Objective,
    Rounds,
    Scale,
    Targets,
    TeacherTargets,
    given_scores,
    teacher_scores,
)
from headroom.models.training.distil.pairs import Pair, portions_of, read_portion
from headroom.models.training.distil.student import fields_of, read_student
from headroom.models.training.distil.teacher import Teacher
from headroom.models.training.distil.teaching import WARM_UP, Student, peak_rate, teach
from headroom.models.training.loop import Progress, Schedule, TimedSchedule
from headroom.models.training.state import at_work, publish

STEPS = 1500
"""The default number of steps, unless one pass over the data takes more."""

THOUSANDTHS = 1000
"""The steps in which the progress of a training is shown."""

SCALE_PAIRS = 1024
"""Pairs on which the teacher's scale and the student's are compared."""


@dataclass(eq=False)
class Run:
    """A distillation at work."""

    job: Job
    bar: ProgressBar
    _done: int | None = field(default=None, init=False)
    """Thousandths of the training that are done; None until it is known how many an earlier run did."""

    @property
    def options(self) -> DistilOptions:
        """Return the options of the run."""
        return self.job.options

    @cached_property
    def start(self) -> tuple[TensorDict, Any]:
        """Return the student's tensors and configuration before it learns."""
        return read_student(self.job.source, self.job.config, self.options.cut, self.kept_layers)

    @cached_property
    def kept_layers(self) -> list[int]:
        """Return the layers of its source that the student keeps: those of the mask, or as an earlier run has
        chosen them.

        Those of a plain encoder, which gives no scores to choose by, are spread evenly.
        """
        if self.options.cut.mask is not None:
            return list(mask_of(self.job.source, self.job.config, self.options.cut.mask).layers_kept)
        depth = self.job.config.num_layers
        count = self.options.cut.layers or depth
        if count == depth or is_plain_encoder(self.job.source):
            return layers.evenly(depth, count)
        file = self.options.work / "layers.json"
        if not file.exists():
            write_whole(file, json.dumps(self._choose_layers(count)).encode())
        kept: list[int] = json.loads(file.read_bytes())
        return kept

    def _choose_layers(self, count: int) -> list[int]:
        job = self.job
        source = self.model if job.is_cut_from_teacher else Classifier.load(job.source, self.options.device)
        assert source is not None
        pairs = read_portion(self.portions[0])
        order = np.random.default_rng(self.options.seed).permutation(len(pairs))
        texts = [(pairs[row].query, pairs[row].title) for row in sorted(order[: layers.PAIRS])]
        return layers.chosen(source, texts, count, self.bar)

    @cached_property
    def before(self) -> Classifier:
        """Return the student before it learns, as it would be served."""
        directory = self.options.work / "before"
        tensors, _ = self.start
        self.write(directory, tensors)
        return Classifier.load(directory, self.options.device)

    @cached_property
    def model(self) -> Classifier | None:
        """Return the model that teaches; None if a column does."""
        if self.job.teacher is None:
            return None
        order = self.options.teacher_labels
        return Classifier.load(self.job.teacher, self.options.device, label_order=order)

    @cached_property
    def window(self) -> int:
        """Return how many tokens of a pair the student and its teacher read: no more than either can."""
        windows = [self.before.max_tokens, self.options.max_tokens]
        if self.model is not None and self.model.config.decoder is None:
            windows.append(self.model.max_tokens)
        return min(windows)

    @cached_property
    def tokenizer(self) -> PairTokenizer:
        """Return the student's tokenizer, within the window."""
        return self.before.tokenizer.within(self.window)

    @cached_property
    def teacher(self) -> Teacher | None:
        """Return the teacher; None if a column teaches."""
        if self.model is None:
            return None
        states = self.job.is_cut_from_teacher and self.model.config.decoder is None
        return Teacher(self.model, self.model.tokenizer.within(self.window), states)

    @cached_property
    def portions(self) -> list[Path]:
        """Return the files of the pairs."""
        return portions_of(self.options.pairs)

    def write(self, directory: Path, tensors: TensorDict) -> None:
        """Write the student's checkpoint with these tensors, in the number format that it had."""
        first, config = self.start
        shutil.rmtree(directory, ignore_errors=True)
        stored = {name: tensor.detach().to("cpu", first[name].dtype) for name, tensor in tensors.items()}
        write_checkpoint(self.job.source, directory, stored, config, **fields_of(self.job.source, config))

    def answer(self, pairs: Sequence[Pair], name: str) -> np.ndarray:
        """Return the teacher's answers to pairs, from disk if an earlier run computed them; those of earlier
        rounds are removed."""
        assert self.teacher is not None
        directory = self.options.work / "answers"
        if name.startswith("round"):
            for file in directory.glob("round-*"):
                if file.stem != name:
                    file.unlink()
        # A teacher's answers may take long: each part shows the same progress again.
        return self.teacher.kept_answers(pairs, directory / f"{name}.bin", lambda: self.bar.advance(0))

    def targets_of(self, pairs: Sequence[Pair], answers: np.ndarray | None) -> Targets:
        """Return what the student should give pairs. answers: the teacher's; None if their scores teach."""
        if answers is None:
            return Targets(self.scale.of(given_scores(pairs, are_shares=self.are_shares)))
        assert self.teacher is not None
        return TeacherTargets(self.teacher, self.scale, self.same_grades).of(answers)

    @property
    def are_shares(self) -> bool:
        """Return whether all given scores are in [0, 1]."""
        return self.job.survey.lowest >= 0 and self.job.survey.highest <= 1

    @property
    def same_grades(self) -> bool:
        """Return whether student and teacher have the same grades, so that probabilities can be learnt."""
        if self.model is None or not self.model.grades:
            return False
        return self.before.grades == self.model.grades

    @cached_property
    def scale(self) -> Scale:
        """Return what maps the wanted scores to the student's own scale.

        Log-odds of a score mean the same in any model and stay. If a one-label model or a column of any
        numbers teaches grades, only the order counts: it is learnt on the scale that the student has.
        """
        pairs = read_portion(self.portions[0])[:SCALE_PAIRS]
        if self.teacher is None:
            wanted = given_scores(pairs, are_shares=self.are_shares)
            is_order = not self.are_shares
        else:
            answers = self.answer(pairs, "portion-000000")
            wanted, _ = teacher_scores(answers["logits"], self.teacher.clf.config)
            is_order = self.before.config.is_graded and not self.teacher.clf.config.is_graded
        if not is_order:
            return Scale(spread=float(wanted.std()) or 1.0)
        own = self.before.score([(pair.query, pair.title) for pair in pairs]).raw_score
        return Scale.between(wanted, own.astype(np.float64))

    def teach(self) -> Student:
        """Train the student, from where an earlier run stopped."""
        options = self.options
        tensors, config = self.start
        self.bar.start("training", THOUSANDTHS)
        self._done = None if self.state.exists() else 0
        rounds = Rounds(
            portions=len(self.portions),
            read=lambda portion: read_portion(self.portions[portion]),
            tokenizer=self.tokenizer,
            answer=None if self.teacher is None else self.answer,
            targets_of=self.targets_of,
            seed=options.seed,
        )
        return teach(
            Learner(config, tensors).to(resolve_device(options.device)),
            Objective(config, self.scale.spread),
            rounds.make,
            self.schedule,
            self.state,
            seed=options.seed,
            after_step=self.shown,
        )

    @property
    def state(self) -> Path:
        """Return the file of the training's progress, with which a later run goes on."""
        return self.options.work / "progress.pt"

    @cached_property
    def schedule(self) -> Schedule | TimedSchedule:
        """Return how long is trained, and the rates."""
        options = self.options
        _, config = self.start
        rate = options.rate or peak_rate(config)
        if options.minutes is not None:
            return TimedSchedule(options.minutes * 60, rate, WARM_UP)
        share = 1.0 if self.teacher is None else 1.0 + SWAPPED_SHARE
        pass_steps = int(self.job.survey.pairs * share) // BATCH_PAIRS
        steps = options.steps or max(STEPS, pass_steps)
        return Schedule(steps, rate, warmup=max(1, round(WARM_UP * steps)), decay=1 - WARM_UP)

    def shown(self, progress: Progress) -> None:
        """Show how much of the training is done."""
        done = round(THOUSANDTHS * self.schedule.share(progress))
        if self._done is None:
            self.bar.start("training", THOUSANDTHS, done)
        else:
            self.bar.advance(done - self._done)
        self._done = done


def distil(job: Job, bar: ProgressBar) -> Json:
    """Teach the student, write its checkpoint, and return the content of its metrics.json.

    A killed run resumes when it is started again with the same options and files. It ends with the same
    weights, unless its time was given in minutes. Its state is in `<out>.distil/` until it is done.
    """
    with at_work(job.options.work, job.fingerprint):
        return _distilled(job, bar)


def _distilled(job: Job, bar: ProgressBar) -> Json:
    write_pairs(job)
    run = Run(job, bar)
    student = run.teach()
    draft = job.options.work / "checkpoint"
    run.write(draft, student.tensors)
    served = Classifier.load(draft, job.options.device)
    metrics = {
        "schema": 1,
        **report.measure(run.before, served, run.model, job, bar),
        "window": run.window,
        "pairs": job.survey.pairs,
        "left_out": job.survey.left_out,
        "kept_layers": run.kept_layers,
        "steps": student.progress.step,
        "tokens": student.progress.tokens,
        "seconds": student.progress.seconds,
        "loss": dict(zip(("first", "last"), student.before_and_after, strict=True)),
        "options": {name: str(value) for name, value in asdict(job.options).items()},
    }
    return publish(draft, job.options.out, job.options.work, metrics)
