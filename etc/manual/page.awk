# Writes a manual page: copies a page of this folder, and replaces its line @HELP@ or @KEYS@ by
# the output of the program's --help, so that both always agree.
# usage: awk -v program=PATH -v version=V -f page.awk PAGE

# Escapes what roff would interpret, or print as another character.
function escaped(text) {
    gsub(/\\/, "\\e", text)
    gsub(/-/, "\\-", text)
    gsub(/"/, "\\(dq", text)
    gsub(/'/, "\\(aq", text)
    gsub(/`/, "\\(ga", text)
    gsub(/\^/, "\\(ha", text)
    gsub(/~/, "\\(ti", text)
    sub(/^\./, "\\\\\\&.", text)
    return text
}

function trimmed(text) {
    gsub(/^ +| +$/, "", text)
    return text
}

function section(title) {
    if (title != open_section) print ".SH " title
    open_section = title
}

# Writes a term of a list: the name in bold, the rest in `font`.
function term(name, rest, font) {
    print ".TP\n\\fB" escaped(name) "\\fR" (rest == "" ? "" : font escaped(rest) "\\fR")
}

# Reads a row such as "check FILE   reads ..." or "-c, --config=FILE   Read ...": a term, at least
# two blanks, its text.
function row(line,   gap, words, name) {
    words = trimmed(line)
    gap = match(words, /  +/) ? RSTART : length(words) + 1
    name = substr(words, 1, gap - 1)
    match(name, /[ =]?[A-Z0-9,]*$|=.*$/)
    term(substr(name, 1, RSTART - 1), substr(name, RSTART), "\\fI")
    if (gap <= length(words)) print escaped(trimmed(substr(words, gap)))
}

function help_line(line) {
    if (line ~ /^Usage: /) {
        section("SYNOPSIS")
        print escaped(substr(line, 8))
        section("DESCRIPTION")
    } else if (line == "") {
        is_parted = 1
    } else if (line ~ /^Mandatory or optional/) {
        return # argp adds this sentence to every --help
    } else if (sub(/^Exit status: /, "", line)) {
        section("EXIT STATUS")
        print escaped(line)
    } else if (line ~ /^ +(-., )?--/) {
        section("OPTIONS")
        if (is_parted && has_groups) print ".SS \"Also:\"" # the options that belong to no group
        is_parted = 0
        row(line)
    } else if (line ~ /^ [^ ].*:$/) {
        section("OPTIONS")
        print ".SS \"" escaped(trimmed(line)) "\""
        is_parted = 0
        has_groups = 1
    } else if (line ~ /^  [^ ]/) {
        section("COMMANDS")
        row(line)
    } else {
        if (open_section == "OPTIONS" && line ~ /^[^ ]/) section("EXIT STATUS")
        print escaped(trimmed(line))
    }
}

function key_line(line,   gap) {
    if (line ~ /^  [^ ]/) {
        line = trimmed(line)
        gap = index(line, " ")
        term(substr(line, 1, gap - 1), substr(line, gap), "\\fR")
        return
    }
    line = trimmed(line)
    if (line ~ /^(-?[0-9]+ \.\. [0-9]+|"[^"]*"( \| "[^"]*")*)$/) print ".br"
    print escaped(line)
}

/^@(HELP|KEYS)@$/ {
    is_keys = 0
    while ((("ARGP_HELP_FMT=rmargin=1000,opt-doc-col=40 " program " --help") | getline line) > 0) {
        lines++
        if (line == "Configuration keys:") is_keys = 1
        else if (is_keys && $0 == "@KEYS@") key_line(line)
        else if (!is_keys && $0 == "@HELP@") help_line(line)
    }
    if (!lines) exit 1 # the program failed
    next
}

{
    gsub(/@VERSION@/, version)
    print
}
