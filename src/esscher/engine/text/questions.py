"""Files of questions about articles, in SQuAD's format, and how right a reply is.

Formats are 1.1 and 2.0 (Rajpurkar et al. 2016, arXiv:1606.05250, and 2018, arXiv:1806.03822): the
questions that an article answers are asked, and those that 2.0 marks as impossible are left out.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections import Counter
from os import PathLike
from typing import Any

from esscher.core.codec import Count, Name, Record, as_record
from esscher.core.errors import InputError
from esscher.core.untrusted import LARGE, parse_json, read_file
from esscher.core.validation import as_path
from esscher.engine.text.documents import TextRecord


class Article(Record, frozen=True, kw_only=True):
    """An article: its title, its text, and questions about it, each with its right answers."""

    title: str
    text: str
    questions: tuple[tuple[str, tuple[str, ...]], ...]


class QuestionsRecord(TextRecord, frozen=True, kw_only=True):
    """A file of questions, as runs name it: titles of articles, and how many each is asked."""

    titles: tuple[Name, ...]
    counts: tuple[Count, ...]

    @property
    def about(self) -> list[int]:
        """Number of the article that each question is about, one after the other."""
        return [i for i, count in enumerate(self.counts) for _ in range(count)]


def read_questions(source: str | PathLike[str]) -> tuple[list[Article], QuestionsRecord]:
    """Read a file of questions; articles without a question that has an answer are left out.

    Raises
    ------
    InputError
        Naming the file and the field, if it is not there, no JSON, in another format, or has no
        question with an answer.
    """
    path = as_path(source, "questions")
    try:
        content = read_file(path, LARGE)
    except FileNotFoundError:
        raise InputError(f"there is no file of questions {str(path)!r}") from None

    def field(tree: Any, place: str, name: str, kind: Any) -> Any:
        fields = as_record(tree, dict[str, Any], f"{path}: {place}" if place else str(path))
        if name not in fields:
            raise InputError(f"{path}: {place or 'the file'} has no {name!r}, as SQuAD's files do")
        return as_record(fields[name], kind, f"{path}: {place}.{name}".replace(": .", ": "))

    articles, trees = [], list[Any]
    for i, tree in enumerate(field(parse_json(content, str(path)), "", "data", trees)):
        questions, texts = [], []
        title = field(tree, f"data[{i}]", "title", Name)
        for j, paragraph in enumerate(field(tree, f"data[{i}]", "paragraphs", trees)):
            place = f"data[{i}].paragraphs[{j}]"
            texts.append(field(paragraph, place, "context", str))
            for k, asked in enumerate(field(paragraph, place, "qas", trees)):
                where = f"{place}.qas[{k}]"
                question = field(asked, where, "question", str).strip()
                if asked.get("is_impossible"):
                    continue
                answers = tuple(
                    field(answer, f"{where}.answers[{n}]", "text", str).strip()
                    for n, answer in enumerate(field(asked, where, "answers", trees))
                )
                if not (question and answers and all(answers)):
                    raise InputError(
                        f"{path}: {where} has no words in its question, or no answer with words; "
                        "mark questions that the article does not answer with is_impossible"
                    )
                questions.append((question, answers))
        if questions:
            text = "\n\n".join(texts)
            articles.append(Article(title=title, text=text, questions=tuple(questions)))
    if not articles:
        raise InputError(f"{path} has no question with an answer; give a file in SQuAD's format")
    titles, counts = zip(*((each.title, len(each.questions)) for each in articles), strict=True)
    digest = hashlib.sha256(content).hexdigest()
    return articles, QuestionsRecord(source=str(path), hash=digest, titles=titles, counts=counts)


def normalised(text: str) -> list[str]:
    """Words of an answer as SQuAD compares them: lower case, no punctuation, no a, an or the."""
    text = "".join(character for character in text.lower() if character not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def squad_scores(reply: str, answers: tuple[str, ...]) -> tuple[float, float]:
    """Return exact match and F1 of a reply, the largest over the right answers, as SQuAD 2.0 does.

    F1 is the harmonic mean of the shares of the reply's words that are in the answer, and of the
    answer's words that are in the reply.
    """
    words, f1 = normalised(reply), [0.0]
    right = [normalised(answer) for answer in answers]
    for expected in right:
        common = (Counter(words) & Counter(expected)).total()
        both = len(words) + len(expected)
        f1.append(2 * common / both if words and expected else float(words == expected))
    return float(words in right), max(f1)
