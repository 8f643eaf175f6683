/* 1.x: one buffer for each message, of any length, in order; its handler runs when all of it has come. */
#include <fm1.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGES = 200, MOST = 30000 };

static unsigned long four, whole;
static unsigned next, words;

static void on_whole(const void *buf, unsigned bytes, unsigned sender)
{
    unsigned i, length = next * 157 % MOST;

    (void)sender;
    if (bytes != length) {
        fprintf(stderr, "message %u has %u bytes, not %u\n", next, bytes, length);
        exit(1);
    }
    for (i = 0; i < bytes; i++) {
        if (((const unsigned char *)buf)[i] != (unsigned char)(i + next)) {
            fprintf(stderr, "message %u, byte %u\n", next, i);
            exit(1);
        }
    }
    next++;
}

static void on_four(const void *buf, unsigned bytes, unsigned sender)
{
    unsigned word[4];

    (void)sender;
    if (bytes != sizeof word)
        exit(1);
    memcpy(word, buf, bytes);
    words += word[0] == words && word[3] == 7;
}

int main(void)
{
    unsigned i, j;
    unsigned char *bytes = (unsigned char *)malloc(MOST);

    FM_initialize();
    four = FM_register_handler(FM_ANY_ID, on_four);
    whole = FM_register_handler(FM_ANY_ID, on_whole);
    if (FM_nodeid == 0) {
        for (i = 0; i < MESSAGES; i++) {
            for (j = 0; j < MOST; j++)
                bytes[j] = (unsigned char)(i + j);
            if (FM_send(1, whole, bytes, i * 157 % MOST) || FM_send_4(1, four, i, 0, 0, 7)) {
                fprintf(stderr, "%s\n", FM_error_text());
                return 1;
            }
        }
    }
    while (FM_nodeid == 1 && (next < MESSAGES || words < MESSAGES)) {
        if (!FM_extract())
            FM_wait(1000);
    }
    printf("node %lu: 1.x\n", FM_nodeid);
    FM_finalize();
    free(bytes);
    return 0;
}
