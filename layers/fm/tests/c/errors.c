/* Every error says what was wrong, and leaves a node that works. One node. */
#include <fm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed;

static void expect(const char *what, int is, int error, const char *text)
{
    if (is && FM_error() == error && strstr(FM_error_text(), text))
        return;
    failed = 1;
    fprintf(stderr, "%s: %d, \"%s\", where %d and \"%s\" were expected\n", what, FM_error(), FM_error_text(), error,
            text);
}

static int handled;

static int on_message(FM_stream *stream, unsigned sender)
{
    char byte;
    FM_stream *reply;

    (void)sender;
    expect("extract in a handler", FM_extract(1) == 0, FM_MISUSE, "in a handler");
    expect("wait in a handler", FM_wait(1) == 0, FM_MISUSE, "handler");
    FM_finalize();
    expect("finalize in a handler", FM_numnodes == 1, FM_MISUSE, "in a handler");
    expect("a piece on a handler's stream", FM_send_piece(stream, "a", 1) == -1, FM_MISUSE, "stream");
    if (FM_receive(&byte, stream, 1) != 1 || FM_receive(&byte, stream, 1) != 0 || FM_left(stream) != 0)
        failed = 1;
    reply = FM_begin_message(0, 1 << 30, 1);
    expect("more than the queue", reply == NULL, FM_FULL, "1073741824 bytes");
    handled++;
    return FM_CONTINUE;
}

int main(void)
{
    FM_stream *stream;
    unsigned long id;

    expect("before", FM_send_4(0, 0, 0, 0, 0, 0) == -1, FM_MISUSE, "FM_initialize");
    expect("a parameter", FM_set_parameter(99, 1) == -1, FM_LIMIT, "parameter 99");
    expect("a value", FM_set_parameter(FM_CREDIT_BYTES, 100) == -1, FM_LIMIT, "credit of 100 bytes");
    expect("a negative", FM_set_parameter(FM_CREDIT_BYTES, -1) == -1, FM_LIMIT, "-1");
    if (FM_set_parameter(FM_CREDIT_BYTES, 768) || FM_set_parameter(FM_TIME_LIMIT_MS, 200))
        return 1;
    FM_initialize();
    expect("again", FM_try_initialize() == -1, FM_MISUSE, "already");
    expect("too late", FM_set_parameter(FM_STACK_BYTES, 65536) == -1, FM_MISUSE, "before");
    id = FM_register_handler(FM_ANY_ID, on_message);
    expect("twice", FM_register_handler(id, on_message) == FM_ANY_ID, FM_LIMIT, "already");
    expect("far", FM_register_handler(FM_MAX_HANDLERS, on_message) == FM_ANY_ID, FM_LIMIT, "1024");
    expect("no node", FM_begin_message(7, 1, id) == NULL, FM_LIMIT, "node 7");
    stream = FM_begin_message(0, 1, id);
    expect("too long", FM_send_piece(stream, "ab", 2) == -1, FM_LIMIT, "2 bytes");
    expect("null", FM_send_piece(stream, NULL, 1) == -1, FM_MISUSE, "null");
    if (FM_send_piece(stream, "a", 1) || FM_end_message(stream))
        return 1;
    expect("not a handler's stream", FM_receive(&failed, NULL, 4) == 0, FM_MISUSE, "stream");
    while (!handled)
        FM_extract(FM_ALL);
    while (FM_send_4(0, 77, 1, 2, 3, 4) == 0) {
    }
    expect("nobody extracts", 1, FM_FULL, "no room at node 0 within 200 ms");
    while (FM_extract(FM_ALL) > 0) {
    }
    if (FM_send_4(0, id, 1, 2, 3, 4))
        failed = 1;
    FM_finalize();
    expect("after", FM_extract(1) == 0, FM_MISUSE, "FM_initialize");
    puts(failed ? "errors: FAILED" : "errors");
    return failed;
}
