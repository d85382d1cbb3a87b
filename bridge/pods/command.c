#include "pods/command.h"

#include "core/array.h"
#include "core/own.h"
#include "core/span.h"
#include "wire/json/tree.h"

#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    max_text_bytes = 256 << 10,
    max_words = 1 << 14,
    max_shells = 4, /* a shell in a shell in a shell */
    max_nested_values = 4,
    max_steps = 1 << 22 /* variables compared: a pod of 1 MiB can nest and repeat them */
};

/* A list of words, before what a shell is given is split. */
struct list {
    struct list_word {
        size_t at; /* in `text` of the reader: an index, because the text moves while it grows */
        bool is_known;
    } * words; /* owned */
    size_t count;
    size_t capacity;
};

/* A variable that a shell's line has set. */
struct variable {
    size_t name;
    size_t value;
    bool is_known;
};

struct reader {
    struct kvb_commands *commands;
    struct json_object *env;    /* of the container */
    struct variable *variables; /* owned; of the container's lines */
    size_t variable_count;
    size_t variable_capacity;
    size_t steps;
    bool is_bare;
    bool is_engine;
};

static void list_done(struct list *list)
{
    free(list->words);
}

static const char *command_text(const struct reader *reader, size_t at)
{
    return (const char *)reader->commands->text.data + at;
}

static kvb_status put_text(struct reader *reader, const char *text, size_t len, size_t *out_at)
{
    struct kvb_buf *buf = &reader->commands->text;
    const size_t at = buf->len;

    KVB_TRY(kvb_buf_append(buf, text, len));
    KVB_TRY(kvb_buf_append(buf, "", 1));
    *out_at = at;
    return KVB_OK;
}

static kvb_status put_word(struct list *list, size_t at, bool is_known)
{
    KVB_TRY(kvb_array_reserve(
        &list->words, &list->capacity, list->count + 1, sizeof *list->words, max_words));
    list->words[list->count++] = (struct list_word){ .at = at, .is_known = is_known };
    return KVB_OK;
}

/* ---- Variables ---- */

/* The value of a variable of the container.  *out_is_there says whether the pod sets it at all; its
 * value may still come from a secret or a field, which the pod object does not contain. */
static const char *env_of(struct reader *reader, kvb_span name, bool *out_is_there)
{
    reader->steps += kvb_json_list_len(reader->env) + 1;
    *out_is_there = reader->steps > max_steps; /* and not known */
    if (*out_is_there) {
        return NULL;
    }
    for (size_t i = kvb_json_list_len(reader->env); i-- > 0;) { /* the last one counts */
        struct json_object *one = json_object_array_get_idx(reader->env, i);
        if (kvb_span_is(name, kvb_json_member_text(one, "name"))) {
            struct json_object *value = kvb_json_member(one, "value");
            *out_is_there = true;
            /* An empty value may be left out; that of a secret or a field is in no pod object. */
            return json_object_is_type(value, json_type_string) ? json_object_get_string(value)
                   : kvb_json_member(one, "valueFrom")          ? NULL
                                                                : "";
        }
    }
    return NULL;
}

static bool is_name_byte(char byte, bool is_first)
{
    return byte == '_' || isalpha((unsigned char)byte) ||
           (!is_first && isdigit((unsigned char)byte));
}

static size_t name_len(const char *text)
{
    size_t len = 0;

    while (is_name_byte(text[len], len == 0)) {
        len++;
    }
    return len;
}

static kvb_status expand_references(
    struct reader *reader, const char *text, unsigned depth, struct kvb_buf *out, bool *is_known);

/* "$(NAME)", if the container has NAME.  KVB_NOT_FOUND: it has not, or this is something else. */
static kvb_status expand_reference(
    struct reader *reader, const char **text, unsigned depth, struct kvb_buf *out, bool *is_known)
{
    const char *at = *text;
    const char *end = at[0] == '$' && at[1] == '(' ? strchr(at, ')') : NULL;
    bool is_there = false;

    if (!end) {
        return KVB_NOT_FOUND;
    }
    const char *value =
        env_of(reader, (kvb_span){ (const uint8_t *)at + 2, (size_t)(end - at - 2) }, &is_there);
    if (!is_there) {
        return KVB_NOT_FOUND;
    }
    *text = end + 1;
    /* Variables that name each other end here, and are not known. */
    if (!value || depth == max_nested_values) {
        *is_known = false;
        return KVB_OK;
    }
    return expand_references(reader, value, depth + 1, out, is_known);
}

/* As the kubelet does before it starts a container: $(NAME) is replaced where the pod sets NAME,
 * and "$$(" is "$(".  What else begins with "$(" is left for the shell, if there is one. */
static kvb_status expand_references(
    struct reader *reader, const char *text, unsigned depth, struct kvb_buf *out, bool *is_known)
{
    while (*text != '\0') {
        const kvb_status status = expand_reference(reader, &text, depth, out, is_known);
        if (status == KVB_NOT_FOUND) {
            /* Of "$$(" the first dollar is dropped, and the second one begins no reference. */
            text += strncmp(text, "$$(", 3) == 0;
            KVB_TRY(kvb_buf_append(out, text, 1));
            text++;
        } else if (status != KVB_OK) {
            return status;
        }
    }
    return KVB_OK;
}

/* ---- The words of a shell ---- */

/* One line that a shell runs, which may have newlines. */
struct shell {
    struct reader *reader;
    const char *at;
    const struct list *given; /* "$@": the words after the line; the first is $0 */
    struct list list;         /* owned; of the simple command so far */
    struct kvb_buf word;      /* owned */
    bool has_word;
    bool is_known;
    bool is_target; /* the word is the file of a redirection, or the mark of a here-document */
    bool is_document;
    char *mark; /* owned; of a here-document that begins at the next newline; or NULL */
    unsigned depth;
};

static kvb_status run_list(struct reader *reader, const struct list *list, unsigned depth);

static void shell_done(struct shell *shell)
{
    list_done(&shell->list);
    kvb_buf_done(&shell->word);
    free(shell->mark);
}

static kvb_status add_byte(struct shell *shell, char byte)
{
    shell->has_word = true;
    return kvb_buf_append(&shell->word, &byte, 1);
}

static kvb_status end_word(struct shell *shell)
{
    size_t at = 0;

    if (!shell->has_word) {
        return KVB_OK;
    }
    const bool is_target = shell->is_target;
    const bool is_document = shell->is_document;
    shell->has_word = shell->is_target = shell->is_document = false;
    /* A file is no word of the command; only the mark of a here-document is needed again. */
    if (is_target) {
        if (is_document) {
            KVB_TRY(kvb_buf_append(&shell->word, "", 1));
            free(shell->mark);
            shell->mark = strdup((const char *)shell->word.data);
        }
        kvb_buf_reset(&shell->word);
        shell->is_known = true;
        return is_document && !shell->mark ? KVB_NO_MEMORY : KVB_OK;
    }
    KVB_TRY(put_text(shell->reader, (const char *)shell->word.data, shell->word.len, &at));
    KVB_TRY(put_word(&shell->list, at, shell->is_known));
    kvb_buf_reset(&shell->word);
    shell->is_known = true;
    return KVB_OK;
}

static kvb_status
set_variable(struct reader *reader, const char *assignment, size_t name_bytes, bool is_known)
{
    struct variable variable = { .is_known = is_known };

    KVB_TRY(put_text(reader, assignment, name_bytes, &variable.name));
    KVB_TRY(put_text(
        reader, assignment + name_bytes + 1, strlen(assignment + name_bytes + 1), &variable.value));
    KVB_TRY(kvb_array_reserve(
        &reader->variables, &reader->variable_capacity, reader->variable_count + 1,
        sizeof *reader->variables, max_words));
    reader->variables[reader->variable_count++] = variable;
    return KVB_OK;
}

/* "NAME=value": the length of NAME; 0: another word. */
static size_t assigned_len(const char *word)
{
    const size_t len = name_len(word);

    return word[len] == '=' ? len : 0;
}

static bool is_word_of(const char *word, const char *const *words)
{
    while (*words && strcmp(word, *words) != 0) {
        words++;
    }
    return *words != NULL;
}

/* Ends a simple command.  Its assignments are remembered, and left out like the words that only
 * join commands; a command that consists of them alone sets variables. */
static kvb_status end_command(struct shell *shell)
{
    static const char *const joins[] = { "{",  "}",     "!",     "if", "then", "elif",   "else",
                                         "fi", "while", "until", "do", "done", "export", NULL };

    KVB_TRY(end_word(shell));
    /* It borrows the words: shell->list frees them. */
    struct list rest = shell->list;
    while (rest.count > 0) {
        struct reader *reader = shell->reader;
        const char *word = command_text(reader, rest.words->at);
        const size_t len = assigned_len(word);
        if (len > 0) {
            /* a copy, because the text moves while it grows */
            KVB_OWN(kvb_buf_done) struct kvb_buf copy = { .ceiling = max_text_bytes };
            KVB_TRY(kvb_buf_append(&copy, word, strlen(word) + 1));
            KVB_TRY(set_variable(reader, (const char *)copy.data, len, rest.words->is_known));
        } else if (!is_word_of(word, joins)) {
            break;
        }
        rest.words++;
        rest.count--;
    }
    const kvb_status status =
        rest.count > 0 ? run_list(shell->reader, &rest, shell->depth) : KVB_OK;
    shell->list.count = 0;
    return status;
}

/* ---- What a dollar brings ---- */

/* Adds a value; outside of quotes it is split into words. */
static kvb_status add_value(struct shell *shell, const char *value, bool is_quoted)
{
    for (; *value != '\0'; value++) {
        if (!is_quoted && isspace((unsigned char)*value)) {
            KVB_TRY(end_word(shell));
        } else {
            KVB_TRY(add_byte(shell, *value));
        }
    }
    return KVB_OK;
}

/* "$@": each of the words given after the line. */
static kvb_status add_given(struct shell *shell, size_t from, size_t until)
{
    for (size_t i = from; i < until && shell->given && i < shell->given->count; i++) {
        const struct list_word *word = &shell->given->words[i];
        KVB_OWN(kvb_buf_done) struct kvb_buf copy = { .ceiling = max_text_bytes };
        if (i > from) {
            KVB_TRY(end_word(shell));
        }
        /* Looked up here, and copied, because the text moves while it grows. */
        const char *text = command_text(shell->reader, word->at);
        KVB_TRY(kvb_buf_append(&copy, text, strlen(text) + 1));
        shell->has_word = true;
        shell->is_known &= word->is_known;
        KVB_TRY(add_value(shell, (const char *)copy.data, true));
    }
    return KVB_OK;
}

/* What a line or the container sets.  The value ends with a NUL where it is known. */
struct found {
    struct kvb_buf value; /* owned */
    bool is_there;
    bool is_known;
};

static void found_done(struct found *found)
{
    kvb_buf_done(&found->value);
}

static kvb_status find_variable(struct reader *reader, kvb_span name, struct found *found)
{
    *found = (struct found){ .value = { .ceiling = max_text_bytes }, .is_known = true };
    reader->steps += reader->variable_count;
    /* The newest assignment counts, and comes before the container's variable. */
    for (size_t i = reader->variable_count; i-- > 0;) {
        const struct variable *one = &reader->variables[i];
        if (kvb_span_is(name, command_text(reader, one->name))) {
            const char *value = command_text(reader, one->value);
            found->is_there = true;
            found->is_known = one->is_known;
            return kvb_buf_append(&found->value, value, strlen(value) + 1);
        }
    }
    const char *value = env_of(reader, name, &found->is_there);
    /* A variable that the pod does not set may come from the image. */
    found->is_known = value != NULL;
    if (value) {
        KVB_TRY(expand_references(reader, value, 0, &found->value, &found->is_known));
        KVB_TRY(kvb_buf_append(&found->value, "", 1));
    }
    return KVB_OK;
}

/* The byte behind a quoted part, or behind an escaped byte, or behind this byte. */
static const char *skip_one(const char *at)
{
    const char quote = *at;

    if (quote == '\\' && at[1] != '\0') {
        return at + 2;
    }
    if (quote == '\'' || quote == '"') {
        at++;
        while (*at != '\0' && *at != quote) {
            at += *at == '\\' && quote == '"' && at[1] != '\0' ? 2 : 1;
        }
    }
    return *at == '\0' ? at : at + 1;
}

/* Skips "(...)" or "{...}" with what it nests, from its first byte. */
static const char *skip_nested(const char *at, char open, char close)
{
    unsigned depth = 0;

    do {
        depth += *at == open;
        depth -= *at == close;
        at = skip_one(at);
    } while (*at != '\0' && depth > 0);
    return at;
}

/* Skips "`...`". */
static const char *skip_backticks(const char *at)
{
    for (at++; *at != '\0' && *at != '`';) {
        at += *at == '\\' && at[1] != '\0' ? 2 : 1;
    }
    return *at == '\0' ? at : at + 1;
}

static kvb_status not_known(struct shell *shell, const char *end)
{
    shell->at = end;
    shell->has_word = true;
    shell->is_known = false;
    return KVB_OK;
}

/* ${NAME}, ${NAME:-default} and ${NAME-default}. */
static kvb_status add_braced(struct shell *shell, bool is_quoted)
{
    const char *name = shell->at + 2;
    const size_t len = name_len(name);
    const char *end = skip_nested(shell->at + 1, '{', '}');
    const bool has_colon = name[len] == ':';
    const char *more = name + len + has_colon;
    KVB_OWN(found_done) struct found found = { 0 };

    if (len == 0 || end[-1] != '}' || (name[len] != '}' && *more != '-')) {
        return not_known(shell, end); /* ${#NAME}, ${NAME%x} and so on */
    }
    KVB_TRY(find_variable(shell->reader, (kvb_span){ (const uint8_t *)name, len }, &found));
    const bool is_default =
        name[len] != '}' &&
        (!found.is_there || (has_colon && found.is_known && found.value.data[0] == '\0'));
    if (is_default) {
        kvb_buf_reset(&found.value);
        KVB_TRY(kvb_buf_append(&found.value, more + 1, (size_t)(end - 1 - (more + 1))));
        KVB_TRY(kvb_buf_append(&found.value, "", 1));
        /* A default is taken as it stands, or not at all. */
        found.is_known = !strpbrk((const char *)found.value.data, "$`\"'\\");
    }
    if (!found.is_known) {
        return not_known(shell, end);
    }
    shell->at = end;
    return add_value(shell, (const char *)found.value.data, is_quoted);
}

static kvb_status add_dollar(struct shell *shell, bool is_quoted)
{
    const char *next = shell->at + 1;
    const size_t len = name_len(next);

    if (*next == '(') {
        return not_known(shell, skip_nested(next, '(', ')'));
    }
    if (*next == '{') {
        return add_braced(shell, is_quoted);
    }
    if (*next == '@' || *next == '*') {
        shell->at += 2;
        return add_given(shell, 1, SIZE_MAX);
    }
    if (isdigit((unsigned char)*next)) {
        shell->at += 2;
        return add_given(shell, (size_t)(*next - '0'), (size_t)(*next - '0') + 1);
    }
    if (len == 0) {
        if (*next != '\0' && strchr("#?-$!", *next)) {
            /* Only the running shell knows $?, $$ and the like. */
            return not_known(shell, next + 1);
        }
        shell->at++;
        return add_byte(shell, '$');
    }
    KVB_OWN(found_done) struct found found = { 0 };
    KVB_TRY(find_variable(shell->reader, (kvb_span){ (const uint8_t *)next, len }, &found));
    if (!found.is_known) {
        return not_known(shell, next + len);
    }
    shell->at = next + len;
    return add_value(shell, (const char *)found.value.data, is_quoted);
}

/* ---- Quotes, operators ---- */

/* A shell refuses a line whose quote does not end. */
static kvb_status end_quoted(struct shell *shell)
{
    if (*shell->at == '\0') {
        shell->is_known = false;
    } else {
        shell->at++;
    }
    return KVB_OK;
}

static kvb_status take_single_quoted(struct shell *shell)
{
    shell->has_word = true;
    for (shell->at++; *shell->at != '\0' && *shell->at != '\''; shell->at++) {
        KVB_TRY(add_byte(shell, *shell->at));
    }
    return end_quoted(shell);
}

static kvb_status take_double_quoted(struct shell *shell)
{
    shell->has_word = true;
    shell->at++;
    while (*shell->at != '\0' && *shell->at != '"') {
        const char next = shell->at[1];
        if (*shell->at == '$') {
            KVB_TRY(add_dollar(shell, true));
        } else if (*shell->at == '`') {
            KVB_TRY(not_known(shell, skip_backticks(shell->at)));
        } else if (*shell->at == '\\' && next != '\0' && strchr("$`\"\\\n", next)) {
            shell->at += 2;
            if (next != '\n') {
                KVB_TRY(add_byte(shell, next));
            }
        } else {
            KVB_TRY(add_byte(shell, *shell->at++));
        }
    }
    return end_quoted(shell);
}

static kvb_status take_backslash(struct shell *shell)
{
    const char next = shell->at[1];

    if (next == '\r' && shell->at[2] == '\n') {
        shell->at += 3; /* a line continued by an editor of Windows */
        return KVB_OK;
    }
    shell->at += next == '\0' ? 1 : 2;
    return next == '\0' || next == '\n' ? KVB_OK : add_byte(shell, next);
}

/* "<", ">" and what belongs to them.  The next word is a file. */
static kvb_status take_redirection(struct shell *shell)
{
    const bool is_number =
        shell->has_word && shell->word.len == 1 && shell->is_known && isdigit(shell->word.data[0]);

    if (is_number) { /* 2> */
        kvb_buf_reset(&shell->word);
        shell->has_word = false;
    }
    KVB_TRY(end_word(shell));
    if (shell->at[1] == '(') { /* <(...) */
        return not_known(shell, skip_nested(shell->at + 1, '(', ')'));
    }
    /* "<<<" is followed by a word, not by a document. */
    shell->is_document = strncmp(shell->at, "<<", 2) == 0 && shell->at[2] != '<';
    while (*shell->at == '<' || *shell->at == '>') {
        shell->at++;
    }
    /* What is left of ">&", ">|" and "<<-". */
    shell->at +=
        *shell->at == '&' || *shell->at == '|' || (shell->is_document && *shell->at == '-');
    shell->is_target = true;
    return KVB_OK;
}

/* Skips a here-document, from the newline before it. */
static void skip_document(struct shell *shell)
{
    const size_t len = strlen(shell->mark);
    bool is_end = false;

    while (*shell->at == '\n' && !is_end) {
        const char *line = shell->at + 1;
        const size_t indent = strspn(line, "\t");
        const size_t line_len = strcspn(line, "\n");
        is_end = line_len == indent + len && strncmp(line + indent, shell->mark, len) == 0;
        shell->at = line + line_len;
    }
    free(shell->mark);
    shell->mark = NULL;
}

static kvb_status take_operator(struct shell *shell)
{
    if (*shell->at == '&' && shell->at[1] == '>') { /* &> file */
        shell->at++;
        return take_redirection(shell);
    }
    KVB_TRY(end_word(shell));
    /* A document begins after the line that announces it, whatever else that line has. */
    if (*shell->at == '\n' && shell->mark) {
        skip_document(shell);
    }
    shell->at += *shell->at != '\0';
    return end_command(shell);
}

static kvb_status take_shell_byte(struct shell *shell)
{
    switch (*shell->at) {
    case ' ':
    case '\t':
    case '\r':
        shell->at++;
        return end_word(shell);
    case '\n':
    case ';':
    case '&':
    case '|':
    case '(':
    case ')':
        return take_operator(shell);
    case '<':
    case '>':
        return take_redirection(shell);
    case '\'':
        return take_single_quoted(shell);
    case '"':
        return take_double_quoted(shell);
    case '\\':
        return take_backslash(shell);
    case '$':
        return add_dollar(shell, false);
    case '`':
        return not_known(shell, skip_backticks(shell->at));
    case '#':
        /* It begins a comment, but within a word it is a byte like others. */
        if (!shell->has_word) {
            shell->at += strcspn(shell->at, "\n");
            return KVB_OK;
        }
        return add_byte(shell, *shell->at++);
    default:
        return add_byte(shell, *shell->at++);
    }
}

/* given: the words after the line. */
static kvb_status
run_shell_line(struct reader *reader, const char *line, const struct list *given, unsigned depth)
{
    KVB_OWN(shell_done)
    struct shell shell = { .reader = reader,
                           .at = line,
                           .given = given,
                           .word = { .ceiling = max_text_bytes },
                           .is_known = true,
                           .depth = depth };

    while (*shell.at != '\0') {
        KVB_TRY(take_shell_byte(&shell));
    }
    return end_command(&shell);
}

/* ---- A list of words ---- */

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

/* Where a shell's line is in the list, as in "exec bash -euo pipefail -c LINE"; 0: nowhere. */
static size_t line_of_shell(const struct reader *reader, const struct list *list)
{
    static const char *const shells[] = { "sh", "bash", "dash", "ash", "zsh", NULL };
    bool is_line = false;
    size_t at = 0;

    /* Before the shell there may be exec, env and the like. */
    while (at < list->count &&
           !is_word_of(base_of(command_text(reader, list->words[at].at)), shells)) {
        at++;
    }
    for (at++; at < list->count; at++) {
        const char *option = command_text(reader, list->words[at].at);
        const size_t len = strlen(option);
        if (option[0] != '-' && option[0] != '+') {
            return is_line ? at : 0; /* else a script's file */
        }
        if (len > 1 && option[1] != '-') {
            is_line |= strchr(option, 'c') != NULL;
            at += option[len - 1] == 'o'; /* its value follows, as pipefail */
        }
    }
    return 0;
}

static kvb_status keep_word(struct reader *reader, const struct list_word *word, bool is_first)
{
    struct kvb_commands *commands = reader->commands;

    KVB_TRY(kvb_array_reserve(
        &commands->words, &commands->capacity, commands->count + 1, sizeof *commands->words,
        max_words));
    commands->words[commands->count++] =
        (struct kvb_command_word){ .at = word->at,
                                   .is_known = word->is_known,
                                   .is_first = is_first,
                                   .is_bare = reader->is_bare,
                                   .is_engine = reader->is_engine };
    return KVB_OK;
}

/* Keeps a simple command, or what the shell runs that it starts. */
static kvb_status run_list(struct reader *reader, const struct list *list, unsigned depth)
{
    const size_t line = line_of_shell(reader, list);

    if (line > 0 && depth < max_shells && list->words[line].is_known) {
        const struct list given = { .words = list->words + line + 1,
                                    .count = list->count - line - 1 };
        KVB_OWN(kvb_buf_done) struct kvb_buf copy = { .ceiling = max_text_bytes };
        const char *text = command_text(reader, list->words[line].at);
        KVB_TRY(kvb_buf_append(&copy, text, strlen(text) + 1));
        /* A line names its programs itself: no entry point of an image gets its words. */
        reader->is_bare = false;
        return run_shell_line(reader, (const char *)copy.data, &given, depth + 1);
    }
    /* No shell, one of which the line is not known, or one that is nested too deep. */
    for (size_t i = 0; i < list->count; i++) {
        KVB_TRY(keep_word(reader, &list->words[i], i == 0));
    }
    return KVB_OK;
}

/* ---- Containers ---- */

static kvb_status take_texts(struct reader *reader, struct json_object *texts, struct list *list)
{
    for (size_t i = 0; i < kvb_json_list_len(texts); i++) {
        struct json_object *one = json_object_array_get_idx(texts, i);
        KVB_OWN(kvb_buf_done) struct kvb_buf text = { .ceiling = max_text_bytes };
        bool is_known = json_object_is_type(one, json_type_string);
        size_t at = 0;
        if (is_known) {
            KVB_TRY(expand_references(reader, json_object_get_string(one), 0, &text, &is_known));
        }
        KVB_TRY(put_text(reader, (const char *)text.data, text.len, &at));
        KVB_TRY(put_word(list, at, is_known));
    }
    return KVB_OK;
}

static bool publishes_events(struct json_object *container)
{
    struct json_object *ports = kvb_json_member(container, "ports");

    for (size_t i = 0; i < kvb_json_list_len(ports); i++) {
        if (strcmp(
                kvb_json_member_text(json_object_array_get_idx(ports, i), "name"), "kv-events") ==
            0) {
            return true;
        }
    }
    return false;
}

static bool names_engine(const char *text)
{
    static const char *const engines[] = { "vllm", "sglang", "trtllm" };
    bool is_engine = false;

    for (size_t i = 0; i < KVB_COUNT_OF(engines); i++) {
        is_engine |= strstr(text, engines[i]) != NULL;
    }
    return is_engine;
}

static kvb_status read_container(struct reader *reader, struct json_object *container)
{
    KVB_OWN(list_done) struct list list = { 0 };
    struct json_object *command = kvb_json_member(container, "command");

    reader->env = kvb_json_member(container, "env");
    /* What a shell has set ends with its container. */
    reader->variable_count = 0;
    reader->is_bare = kvb_json_list_len(command) == 0;
    reader->is_engine =
        publishes_events(container) || names_engine(kvb_json_member_text(container, "image"));
    KVB_TRY(take_texts(reader, command, &list));
    KVB_TRY(take_texts(reader, kvb_json_member(container, "args"), &list));
    return list.count > 0 ? run_list(reader, &list, 0) : KVB_OK;
}

/* A program whose own words name an engine is one, whatever its container. */
static void mark_engines(struct kvb_commands *commands)
{
    for (size_t from = 0, until; from < commands->count; from = until) {
        bool is_engine = false;
        for (until = from;
             until < commands->count && (until == from || !commands->words[until].is_first);
             until++) {
            const struct kvb_command_word *word = &commands->words[until];
            /* the program, or the module after -m; not an option's value, as a model's path */
            is_engine |=
                (until - from < 6 && word->text[0] != '-' && names_engine(word->text) &&
                 (until == from || commands->words[until - 1].text[0] != '-' ||
                  strcmp(commands->words[until - 1].text, "-m") == 0));
        }
        for (size_t i = from; i < until; i++) {
            commands->words[i].is_engine |= is_engine;
        }
    }
}

kvb_status kvb_commands_read(struct json_object *containers, struct kvb_commands *out_commands)
{
    struct reader reader = { .commands = out_commands };
    kvb_status status = KVB_OK;

    *out_commands = (struct kvb_commands){ .text = { .ceiling = max_text_bytes } };
    for (size_t i = 0; i < kvb_json_list_len(containers) && status == KVB_OK; i++) {
        status = read_container(&reader, json_object_array_get_idx(containers, i));
    }
    free(reader.variables);
    /* The text moves no more: addresses of words hold from here on. */
    for (size_t i = 0; i < out_commands->count; i++) {
        struct kvb_command_word *word = &out_commands->words[i];
        word->text = word->is_known ? command_text(&reader, word->at) : "";
    }
    mark_engines(out_commands);
    /* A pod that has too much is judged by what was read of it. */
    return status == KVB_TOO_LARGE ? KVB_OK : status;
}

void kvb_commands_done(struct kvb_commands *commands)
{
    kvb_buf_done(&commands->text);
    free(commands->words);
    commands->words = NULL;
    commands->count = 0;
}

/* ---- Options ---- */

/* The rest of the word after "--name"; NULL: it is another word.  argparse of vLLM takes
 * underscores for dashes. */
static const char *after_option(const char *word, const char *name)
{
    for (; *name != '\0'; word++, name++) {
        if (*word != *name && !(*word == '_' && *name == '-')) {
            return NULL;
        }
    }
    return *word == '\0' || *word == '=' ? word : NULL;
}

static bool has_next(const struct kvb_commands *commands, size_t at)
{
    return at + 1 < commands->count && !commands->words[at + 1].is_first;
}

/* False: no command has it.  *out_value is NULL where its value is not known. */
static bool find_option(
    const struct kvb_commands *commands, const char *name, bool is_engine, const char **out_value)
{
    bool is_there = false;

    for (size_t i = 0; i < commands->count; i++) {
        const struct kvb_command_word *word = &commands->words[i];
        const char *rest = after_option(word->text, name);
        /* Within the command the newest value counts. */
        if (is_there && word->is_first) {
            break; /* of the first command that has it */
        }
        if (!rest || word->is_engine != is_engine) {
            continue;
        }
        if (*rest == '=') {
            *out_value = rest + 1;
            is_there = true;
        } else if (has_next(commands, i)) {
            /* An earlier value does not count either: the engine reads this one. */
            *out_value = word[1].is_known ? word[1].text : NULL;
            is_there = true;
        }
    }
    return is_there;
}

const char *kvb_commands_option(const struct kvb_commands *commands, const char *name)
{
    const char *value = NULL;

    if (!find_option(commands, name, true, &value)) {
        (void)find_option(commands, name, false, &value);
    }
    return value;
}

/* Whether the option has no value, so that the next word may be the model. */
static bool is_flag(const char *option)
{
    static const char *const flags[] = { "--enable-",
                                         "--disable-",
                                         "--no-",
                                         "--trust-remote-code",
                                         "--enforce-eager",
                                         "--headless",
                                         "--async-scheduling",
                                         "--skip-",
                                         "--use-",
                                         "--return-",
                                         "--calculate-",
                                         "--language-model-only",
                                         "--fully-sharded-loras" };
    bool is_one = strchr(option, '=') != NULL;

    for (size_t i = 0; i < KVB_COUNT_OF(flags) && !is_one; i++) {
        const char *at = option;
        const char *name = flags[i];
        while (*name != '\0' && (*at == *name || (*at == '_' && *name == '-'))) {
            at++;
            name++;
        }
        is_one = *name == '\0';
    }
    return is_one;
}

/* Whether the option takes all words up to the next option. */
static bool takes_many(const char *option)
{
    return after_option(option, "--served-model-name") || after_option(option, "--lora-modules") ||
           after_option(option, "--api-key") || after_option(option, "--middleware");
}

/* The first word from `at` on that is neither an option nor its value; "": one that is not known
 * may be it; NULL: there is none. */
static const char *first_positional(const struct kvb_commands *commands, size_t at)
{
    for (; at < commands->count; at++) {
        const struct kvb_command_word *word = &commands->words[at];
        if (!word->is_known || word->text[0] != '-') {
            return word->text;
        }
        const bool is_many = takes_many(word->text) && !strchr(word->text, '=');
        if (!is_flag(word->text) && has_next(commands, at) &&
            commands->words[at + 1].text[0] != '-') {
            at++;
        }
        while (is_many && has_next(commands, at) && commands->words[at + 1].text[0] != '-') {
            at++;
        }
        if (!has_next(commands, at)) {
            return NULL;
        }
    }
    return NULL;
}

/* Whether the word is `serve` of an engine's program, or of an image's entry point. */
static bool is_serve(const struct kvb_commands *commands, size_t at)
{
    const struct kvb_command_word *word = &commands->words[at];

    if (strcmp(word->text, "serve") != 0) {
        return false;
    }
    /* As a first word it is for the image's entry point: that needs a container without a
     * command. */
    return word->is_first ? word->is_bare : names_engine(word[-1].text);
}

static const char *served_model(const struct kvb_commands *commands)
{
    const char *model = NULL;

    for (size_t i = 0; i < commands->count && !model; i++) {
        const struct kvb_command_word *word = &commands->words[i];
        if (is_serve(commands, i) || strcmp(base_of(word->text), "trtllm-serve") == 0) {
            model = has_next(commands, i) ? first_positional(commands, i + 1) : NULL;
        }
    }
    return model;
}

static bool is_program(const char *word)
{
    const size_t len = strlen(word);

    return strncmp(base_of(word), "python", 6) == 0 || strcmp(base_of(word), "vllm") == 0 ||
           (len > 3 && (strcmp(word + len - 3, ".sh") == 0 || strcmp(word + len - 3, ".py") == 0));
}

/* Of an image of an engine whose entry point is `vllm serve`. */
static const char *first_argument(const struct kvb_commands *commands)
{
    const char *model = NULL;

    for (size_t i = 0; i < commands->count && !model; i++) {
        const struct kvb_command_word *word = &commands->words[i];
        if (word->is_first && word->is_bare && word->is_engine && !is_program(word->text)) {
            model = first_positional(commands, i);
        }
    }
    return model;
}

const char *kvb_commands_model(const struct kvb_commands *commands, const char **out_rule)
{
    static const struct {
        const char *name;
        const char *rule;
    } options[] = { { "--served-model-name", "argument --served-model-name" },
                    { "--model", "argument --model" },
                    { "--model-path", "argument --model-path" } };
    const char *model = NULL;
    bool is_named = false; /* by a word, known or not */

    /* A proxy beside the engine may have options of the same name: the engine's words first. */
    for (int is_engine = 1; is_engine >= 0 && !is_named; is_engine--) {
        for (size_t i = 0; i < KVB_COUNT_OF(options); i++) {
            model = NULL;
            is_named |= find_option(commands, options[i].name, is_engine, &model);
            if (model && model[0] != '\0') {
                *out_rule = options[i].rule;
                return model;
            }
        }
        if (is_engine) {
            const char *served = served_model(commands);
            model = served ? served : first_argument(commands);
            is_named |= model != NULL;
            if (model && model[0] != '\0') {
                *out_rule = served ? "argument of serve" : "first argument";
                return model;
            }
        }
    }
    return NULL;
}
