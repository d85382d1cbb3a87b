"""Small mistakes in C: where one can be made, and what the text is then.

Only in bodies of functions, and neither in preprocessor lines nor in what no suite can notice: calls
that log, and calls that give memory back."""

import random
import re

TOKEN = re.compile(
    r"(?P<skip>/\*.*?\*/|//[^\n]*|^[ \t]*\#(?:\\\n|[^\n])*|\s+)"
    r"|(?P<text>\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*')"
    r"|(?P<word>[A-Za-z_]\w*)"
    r"|(?P<number>\d[\w.]*)"
    r"|(?P<mark><<=|>>=|\.\.\.|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|.)",
    re.M | re.S)
COMPARED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&"}
CHANGES = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=", "++", "--"}
NO_CALLS = {"if", "while", "for", "switch", "return", "sizeof", "assert", "free"}
UNNOTICED = re.compile(r"kvb_log|_log$|_free$|_done$")


class Mutation:
    """Replaces text[start:end] by new."""

    def __init__(self, line, start, end, new, what):
        self.line, self.start, self.end, self.new, self.what = line, start, end, new, what

    def apply(self, text):
        return text[: self.start] + self.new + text[self.end :]


class Tokens:
    def __init__(self, text):
        self.text, self.all, line = text, [], 1
        for found in TOKEN.finditer(text):
            if found.lastgroup != "skip":
                self.all.append((found.group(), found.lastgroup, found.start(), found.end(), line))
            line += found.group().count("\n")

    def word(self, at):
        return self.all[at][0] if 0 <= at < len(self.all) else ""

    def kind(self, at):
        return self.all[at][1]

    def closing(self, at):
        """Of the bracket at this place."""
        depth = 0
        for i in range(at, len(self.all)):
            depth += (self.word(i) in "([{") - (self.word(i) in ")]}")
            if depth == 0:
                return i
        return len(self.all) - 1

    def mutation(self, first, last, new, what):
        return Mutation(self.all[first][4], self.all[first][2], self.all[last][3], new, what)

    def source(self, first, last):
        return re.sub(r"\s+", " ", self.text[self.all[first][2] : self.all[last][3]])


def bodies(tokens):
    """Places of tokens inside functions: a brace behind a parenthesis, at the outermost level."""
    at = 0
    while at < len(tokens.all):
        if tokens.word(at) in ("{", "(", "["):
            end = tokens.closing(at)
            if tokens.word(at) == "{" and tokens.word(at - 1) == ")":
                yield from range(at + 1, end)
            at = end
        at += 1


# ---- The kinds: each yields the mistakes that can be made at one token -----------


def negated_condition(tokens, at):
    if tokens.word(at) not in ("if", "while") or tokens.word(at + 1) != "(":
        return
    end = tokens.closing(at + 1)
    inside = [tokens.word(i) for i in range(at + 2, end)]
    if "&&" not in inside and "||" not in inside and ("==" in inside or "!=" in inside):
        return  # another comparison makes the same of it
    condition = tokens.text[tokens.all[at + 1][2] : tokens.all[end][3]]
    yield tokens.mutation(at + 1, end, f"(!{condition})", f"`{tokens.word(at)} {tokens.source(at + 1, end)}` negated")


def other_comparison(tokens, at):
    old = tokens.word(at)
    if old in COMPARED and tokens.kind(at) == "mark":
        yield tokens.mutation(at, at, COMPARED[old], f"`{old}` became `{COMPARED[old]}`")


def off_by_one(tokens, at):
    """Not of `{ 0 }`, which stands for an empty struct."""
    found = re.fullmatch(r"(\d+)([uUlL]*)", tokens.word(at)) if tokens.kind(at) == "number" else None
    if found and tokens.word(at - 1) != "{" and not re.match(r"0\d", found.group(1)):
        is_added = tokens.word(at - 1) in ("+", "-") and found.group(1) == "1"
        new = f"{0 if is_added else int(found.group(1)) + 1}{found.group(2)}"
        yield tokens.mutation(at, at, new, f"`{tokens.word(at)}` became `{new}`")


def swapped_branches(tokens, at):
    """Of a ? b : c. The branches of an if are swapped by its negated condition."""
    if tokens.word(at) != "?":
        return
    depth, colon = 0, 0
    for i in range(at + 1, len(tokens.all)):
        word = tokens.word(i)
        if word == "?" or (depth == 0 and word == ":" and colon):
            return  # one within another: left alone
        if depth == 0 and word == ":":
            colon = i
        elif depth == 0 and word in (")", "]", "}", ",", ";"):
            break
        depth += (word in "([{") - (word in ")]}")
    if colon:
        first, second = tokens.source(at + 1, colon - 1), tokens.source(colon + 1, i - 1)
        yield tokens.mutation(at + 1, i - 1, f"{second} : {first}", f"`{first}` and `{second}` swapped")


def dropped_statement(tokens, at):
    """A call whose value nobody takes, or a change of what a pointer leads to."""
    name, first, end = tokens.word(at), at, at
    if [tokens.word(i) for i in range(at - 3, at)] == ["(", "void", ")"]:
        first = at - 3
    if tokens.kind(at) != "word" or name in NO_CALLS or tokens.word(first - 1) not in (";", "{", "}", ")", "else"):
        return
    if tokens.word(at + 1) == "(":
        end = tokens.closing(at + 1)
        called = tokens.word(at + 2) if name == "KVB_TRY" else name
        if called in NO_CALLS or UNNOTICED.search(called):
            return
    elif tokens.word(at + 1) == "->":
        while tokens.word(end + 1) not in (";", ",", ")", "]", "}", ""):
            end = tokens.closing(end + 1)
        if not any(tokens.word(i) in CHANGES for i in range(at, end + 1)):
            return
    if tokens.word(end + 1) == ";" and end > at:
        yield tokens.mutation(first, end, "", f"`{tokens.source(first, end)};` dropped")


KINDS = (negated_condition, other_comparison, off_by_one, swapped_branches, dropped_statement)


def find_mutations(text, lines):
    """All that can be made at tokens on these lines, from the top."""
    tokens = Tokens(text)
    return [mutation for at in bodies(tokens) if tokens.all[at][4] in lines
            for kind in KINDS for mutation in kind(tokens, at)]


def choose(found, most, seed):
    """Evenly: one at random of each of `most` equal parts."""
    if len(found) <= most:
        return found
    chance = random.Random(seed)
    edges = [len(found) * i // most for i in range(most + 1)]
    return [found[chance.randrange(edges[i], edges[i + 1])] for i in range(most)]
