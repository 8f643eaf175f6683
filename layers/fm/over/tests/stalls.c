/* Node 1 speaks the protocol of sockets by itself, and stops in the middle of messages; node 0 closes its sockets,
 * keeps its time limit, and leaves. */
#include "check.h"
#include "../over.h"
#include <fm_sockets.h>

enum { CONNECT = OVER_ID_SOCKETS, ANSWER, DATA, READY = 1, GO = 2 };

static unsigned long turns;
static uint32_t answered;
static char bytes[10000];

static int on_turn(FM_stream *stream, unsigned sender)
{
    (void)stream, (void)sender;
    turns++;
    return FM_CONTINUE;
}

static int on_answer(FM_stream *stream, unsigned sender)
{
    uint32_t words[4];

    (void)sender;
    EQUAL(FM_receive(words, stream, sizeof words), sizeof words);
    answered = words[1];
    return FM_CONTINUE;
}

static int is_ready(void *of) { return *(const unsigned long *)of > 0; }

static void wait_for_turn(void)
{
    EQUAL(over_wait(is_ready, &turns, OVER_NONE, 60000, FM_ALL), 0);
    turns--;
}

static uint32_t connect_to(unsigned port)
{
    answered = 0;
    while (!answered) {
        EQUAL(FM_send_4(0, CONNECT, port, 7 + port, 32768, 0), 0);
        while (FM_extract(FM_ALL) == 0 && !FM_has_left(0))
            FM_wait(20);
        CHECK(!FM_has_left(0));
    }
    return answered;
}

/* A message of which only the header comes. */
static FM_stream *stop_in_the_middle(unsigned port, uint32_t to)
{
    uint32_t header[4] = {to, 7 + port, 0, 0};
    FM_stream *stream = FM_begin_message(0, sizeof header + OVER_CHUNK, DATA);

    CHECK(stream);
    EQUAL(FM_send_piece(stream, header, sizeof header), 0);
    return stream;
}

static void lie(void)
{
    uint32_t to;

    CHECK(FM_register_handler(GO, on_turn) == GO && FM_register_handler(ANSWER, on_answer) == ANSWER);
    (void)stop_in_the_middle(5, connect_to(5));
    EQUAL(FM_send_4(0, READY, 0, 0, 0, 0), 0);
    to = connect_to(8);
    while (turns == 0) {
        FM_extract(FM_ALL);
        FM_wait(20);
    }
    (void)stop_in_the_middle(8, to);
    while (!FM_has_left(0)) {
        FM_extract(FM_ALL);
        FM_wait(20);
    }
    FM_finalize();
}

int main(void)
{
    int listener, socket;

    FM_initialize();
    if (FM_nodeid == 1) {
        lie();
        return 0;
    }
    EQUAL(fms_start(), 0);
    EQUAL(FM_register_handler(READY, on_turn), READY);

    /* A connection that waits receives a message, and its listener is closed. */
    listener = fms_listen(5);
    wait_for_turn();
    EQUAL(fms_close(listener), 0);

    /* The time limit holds in the middle of a message. */
    listener = fms_listen(8);
    socket = fms_accept(listener, 60000);
    CHECK(socket > 0);
    EQUAL(fms_set(FMS_LIMIT_MS, 1000), 0);
    EQUAL(FM_send_4(1, GO, 0, 0, 0, 0), 0);
    EQUAL(fms_recv(socket, bytes, sizeof bytes), FMS_TIME);

    /* The handlers of both messages end here. */
    fms_finish();
    FM_finalize();
    return 0;
}
