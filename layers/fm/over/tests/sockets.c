/* Stream sockets between all nodes. */
#include "check.h"
#include <fm_sockets.h>
#include <string.h>

enum { PORT = 9, ALL = 300000, MINUTE = 60000 };

static unsigned char mine[ALL], theirs[ALL];
static int to, from, control_to, control_from;
static unsigned long next_node;

static void receive_all(int socket, void *to, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        long got = fms_recv(socket, (char *)to + done, bytes - done);

        CHECK(got > 0);
        done += (size_t)got;
    }
}

/* Two connections from each node to the next. */
static void connect_the_ring(void)
{
    int listener = fms_listen(PORT);

    CHECK(listener > 0);
    EQUAL(fms_listen(PORT), FMS_REFUSED);
    to = fms_connect(next_node, PORT, MINUTE);
    control_to = fms_connect(next_node, PORT, MINUTE);
    CHECK(to > 0 && control_to > 0);
    from = fms_accept(listener, MINUTE);
    control_from = fms_accept(listener, MINUTE);
    CHECK(from > 0 && control_from > 0);
    EQUAL(fms_close(listener), 0);
}

/* Everyone waits for the next: what all have done before, is done. */
static void meet(void)
{
    for (unsigned long round = 0; round < FM_numnodes; round++) {
        char token = 't';

        EQUAL(fms_send(to, &token, 1), 1);
        EQUAL(fms_recv(from, &token, 1), 1);
        EQUAL(token, 't');
    }
}

static void more_than_all_windows_goes_around_while_everyone_sends(void)
{
    size_t sent = 0, got = 0;

    for (size_t at = 0; at < ALL; at++)
        mine[at] = byte_at(at + FM_nodeid);
    while (sent < ALL || got < ALL) {
        fms_pollfd sockets[2] = {{to, sent < ALL ? FMS_OUT : 0, 0}, {from, got < ALL ? FMS_IN : 0, 0}};

        CHECK(fms_poll(sockets, 2, MINUTE) > 0);
        if (sockets[0].revents & FMS_OUT) {
            long bytes = fms_try_send(to, mine + sent, ALL - sent);

            CHECK(bytes >= 0);
            sent += (size_t)bytes;
        }
        if (sockets[1].revents & FMS_IN) {
            long bytes = fms_recv(from, theirs + got, ALL - got);

            CHECK(bytes > 0);
            got += (size_t)bytes;
        }
    }
    for (size_t at = 0; at < ALL; at++)
        CHECK(theirs[at] == byte_at(at + (FM_nodeid + FM_numnodes - 1) % FM_numnodes));
    meet();
}

static void a_read_returns_a_part_of_what_was_sent(void)
{
    char part[4] = {0};

    EQUAL(fms_send(to, "0123456789", 10), 10);
    EQUAL(fms_recv(from, part, 3), 3);
    CHECK(memcmp(part, "012", 3) == 0);
    EQUAL(fms_recv(from, part, 3), 3);
    CHECK(memcmp(part, "345", 3) == 0);
    receive_all(from, part, 4);
    CHECK(memcmp(part, "6789", 4) == 0);
    meet();
}

static void a_sender_stops_at_the_window(void)
{
    size_t sent = 0, got = 0;
    long bytes;
    fms_pollfd other = {from, FMS_IN, 0};
    char word[4];

    /* Nobody reads until the other connection says that this one is full. */
    for (;;) {
        fms_pollfd one = {to, FMS_OUT, 0};

        bytes = fms_try_send(to, mine, ALL);
        CHECK(bytes >= 0);
        sent += (size_t)bytes;
        CHECK(sent <= 32768);
        if (sent == 32768)
            break;
        CHECK(fms_poll(&one, 1, MINUTE) == 1);
    }
    EQUAL(fms_try_send(to, mine, 1), 0);
    EQUAL(fms_send(control_to, "full", 4), 4);
    receive_all(control_from, word, 4);
    CHECK(memcmp(word, "full", 4) == 0);
    EQUAL(fms_poll(&other, 1, MINUTE), 1);
    while (got < sent) {
        bytes = fms_recv(from, theirs, ALL);
        CHECK(bytes > 0);
        got += (size_t)bytes;
    }
    EQUAL(got, sent);
    meet();
}

static void nobody_listens_there(void)
{
    fms_pollfd none;
    int listener = fms_listen(77);

    EQUAL(fms_connect(next_node, 78, 2000), FMS_REFUSED);
    EQUAL(fms_connect(FM_numnodes, 78, 0), FMS_RANGE);
    EQUAL(fms_connect(0, -1, 0), FMS_RANGE);
    EQUAL(fms_accept(listener, 5), FMS_TIME);
    none = (fms_pollfd){listener, FMS_IN, 7};
    EQUAL(fms_poll(&none, 1, 5), 0);
    EQUAL(none.revents, 0);
    EQUAL(fms_close(listener), 0);
    EQUAL(fms_close(listener), FMS_RANGE);
    EQUAL(fms_recv(listener, &none, 1), FMS_RANGE);
    none = (fms_pollfd){listener, FMS_IN, 0};
    EQUAL(fms_poll(&none, 1, MINUTE), 1);
    EQUAL(none.revents, FMS_HUP);
    CHECK(strlen(fms_error_text(FMS_CLOSED)) > 0);
    meet();
}

static void a_program_connects_to_itself_and_its_backlog_is_bounded(void)
{
    int listener = fms_listen(1), sockets[FMS_BACKLOG_MAX], first;
    char word[5];

    for (int at = 0; at < FMS_BACKLOG_MAX; at++) {
        sockets[at] = fms_connect(FM_nodeid, 1, MINUTE);
        CHECK(sockets[at] > 0);
    }
    EQUAL(fms_connect(FM_nodeid, 1, 100), FMS_REFUSED);
    first = fms_accept(listener, MINUTE);
    EQUAL(fms_send(sockets[0], "hello", 5), 5);
    receive_all(first, word, 5);
    CHECK(memcmp(word, "hello", 5) == 0);
    EQUAL(fms_close(listener), 0);
    /* Those that were not accepted are closed with it. */
    EQUAL(fms_recv(sockets[1], word, 1), 0);
    for (int at = 0; at < FMS_BACKLOG_MAX; at++)
        EQUAL(fms_close(sockets[at]), 0);
    EQUAL(fms_recv(first, word, 1), 0);
    EQUAL(fms_close(first), 0);
}

/* How many of the bytes that a reader was late for went straight to its buffer. */
static unsigned long straight(int extract_all)
{
    fms_figures before, after;

    fms_set(FMS_EXTRACT_ALL, extract_all);
    fms_set(FMS_LIMIT_MS, 0);
    fms_get_figures(&before);
    if (FM_nodeid % 2 == 0 && FM_nodeid + 1 < FM_numnodes) {
        EQUAL(fms_send(to, mine, ALL), ALL);
    } else if (FM_nodeid % 2 == 1) {
        for (size_t got = 0; got < ALL;) {
            long bytes = fms_recv(from, theirs + got, ALL - got < 8192 ? ALL - got : 8192);

            CHECK(bytes > 0);
            got += (size_t)bytes;
        }
        CHECK(memcmp(mine + 1, theirs, ALL - 2) == 0 || FM_nodeid != 1);
    }
    fms_get_figures(&after);
    fms_set(FMS_LIMIT_MS, MINUTE);
    meet();
    return after.bytes_straight - before.bytes_straight;
}

static void a_reader_that_extracts_what_it_wants_saves_copies(void)
{
    unsigned long bounded = 0, all = 0;

    for (size_t at = 0; at < ALL; at++)
        mine[at] = byte_at(at + (FM_nodeid % 2 == 0));
    for (int round = 0; round < 3; round++) {
        all += straight(1);
        bounded += straight(0);
    }
    if (FM_nodeid == 1)
        printf("straight to the reader: %.1f %% with FM_extract(n), %.1f %% with all\n", 100.0 * bounded / ALL / 3,
               100.0 * all / ALL / 3);
    if (FM_nodeid % 2 == 1)
        CHECK(bounded >= all && bounded >= 3 * (ALL / 4 * 3));
}

static void the_end_comes_after_the_last_byte(void)
{
    char byte;

    /* From the front backwards: what `from` gets, comes from the node before. */
    EQUAL(fms_send(to, "x", 1), 1);
    EQUAL(fms_shutdown(to), 0);
    EQUAL(fms_send(to, "y", 1), FMS_CLOSED);
    EQUAL(fms_recv(from, &byte, 1), 1);
    EQUAL(byte, 'x');
    EQUAL(fms_recv(from, &byte, 1), 0);
    EQUAL(fms_recv(from, &byte, 1), 0);
    /* The other direction is still there. */
    EQUAL(fms_send(from, "z", 1), 1);
    EQUAL(fms_recv(to, &byte, 1), 1);
    EQUAL(byte, 'z');
    EQUAL(fms_close(to), 0);
    EQUAL(fms_close(to), FMS_RANGE);
    for (;;) {
        long sent = fms_send(from, mine, 8192);

        if (sent == FMS_CLOSED)
            break;
        CHECK(sent > 0);
    }
    EQUAL(fms_close(from), 0);
    EQUAL(fms_close(control_to), 0);
    EQUAL(fms_recv(control_from, &byte, 1), 0);
}

int main(void)
{
    fms_figures figures;

    EQUAL(fms_set(FMS_WINDOW, 1), FMS_RANGE);
    EQUAL(fms_set(FMS_LIMIT_MS, MINUTE), 0);
    EQUAL(fms_start(), 0);
    next_node = (FM_nodeid + 1) % FM_numnodes;
    connect_the_ring();
    more_than_all_windows_goes_around_while_everyone_sends();
    a_read_returns_a_part_of_what_was_sent();
    a_sender_stops_at_the_window();
    nobody_listens_there();
    a_program_connects_to_itself_and_its_backlog_is_bounded();
    a_reader_that_extracts_what_it_wants_saves_copies();
    the_end_comes_after_the_last_byte();
    fms_get_figures(&figures);
    EQUAL(figures.refused, 0);
    fms_finish();
    return 0;
}
