/* A token goes around all nodes, and a long message whose handler chooses where its bytes go.
 *   hamlyn run -n 4 -- ./ring
 * All nodes send before they extract, so what they send has to fit into the credit of 48 KiB.
 */
#include <fm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 1000, BYTES = 40000 };

static unsigned long token, picture;
static unsigned passed, came;
static char place[BYTES];

static int on_token(FM_stream *stream, unsigned sender)
{
    unsigned round;

    (void)sender;
    FM_receive(&round, stream, sizeof round);
    passed = round;
    /* A handler may send: the call does not wait. */
    int is_last = FM_nodeid + 1 == FM_numnodes;
    if (round < ROUNDS || !is_last)
        FM_send_4((FM_nodeid + 1) % FM_numnodes, token, round + is_last, 0, 0, 0);
    return FM_CONTINUE;
}

static int on_picture(FM_stream *stream, unsigned sender)
{
    unsigned length;

    (void)sender;
    /* First the header, then the bytes, to the place that the header asks for. */
    FM_receive(&length, stream, sizeof length);
    if (length <= BYTES && FM_receive(place, stream, length) == (int)length)
        came++;
    return FM_CONTINUE;
}

static void all(const char *what, int failed)
{
    if (failed) {
        fprintf(stderr, "%s: %s\n", what, FM_error_text());
        exit(1);
    }
}

int main(void)
{
    unsigned long next;
    unsigned length = BYTES;
    char *bytes = malloc(BYTES);
    FM_stream *stream;
    FM_figures figures;

    FM_initialize();
    token = FM_register_handler(FM_ANY_ID, on_token);
    picture = FM_register_handler(FM_ANY_ID, on_picture);
    next = (FM_nodeid + 1) % FM_numnodes;

    memset(bytes, 'p', BYTES);
    stream = FM_begin_message(next, sizeof length + BYTES, picture);
    all("begin", stream == NULL);
    all("send", FM_send_piece(stream, &length, sizeof length));
    all("send", FM_send_piece(stream, bytes, BYTES / 2));
    all("send", FM_send_piece(stream, bytes + BYTES / 2, BYTES / 2));
    all("end", FM_end_message(stream));
    if (FM_nodeid == 0)
        all("send", FM_send_4(next, token, 1, 0, 0, 0));

    while (passed < ROUNDS || !came) {
        if (!FM_extract(FM_ALL))
            FM_wait(1000);
    }
    FM_get_figures(&figures);
    if (memcmp(place, bytes, BYTES) != 0)
        return 1;
    printf("node %lu of %lu: %u rounds; %llu of %llu bytes went straight to their place\n", FM_nodeid,
           FM_numnodes, passed, figures.bytes_direct, figures.bytes_received);
    FM_finalize();
    free(bytes);
    return 0;
}
