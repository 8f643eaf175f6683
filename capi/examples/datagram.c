/*
 * Datagrams: one at a time, into a receiver that is ready or not; with a ticket for the answer.
 */
#include "common.h"

static void receiver(void) {
    h_node_t *node;
    h_datagram_receiver_t *receiver;
    h_datagram_t datagram;
    CHECK(h_node_new(NULL, 0, &node));
    CHECK(h_datagram_receiver_new(node, 4096, &receiver));
    CHECK(h_datagram_receiver_serve(receiver, "questions", H_ACCESS_SAME_USER, 0));
    start_other("sender", "questions");

    for (int i = 0; i < 3; i++) {
        char question[256], answer[300];
        size_t length;
        CHECK(h_datagram_receive(receiver, LIMIT, &datagram));
        CHECK(h_datagram_read(receiver, question, sizeof question - 1, &length));
        question[length] = 0;
        /* What matters has been copied, so the next one may come. */
        CHECK(h_datagram_ready(receiver));
        int n = snprintf(answer, sizeof answer, "%s? 42.", question);
        CHECK(h_datagram_reply(receiver, answer, (size_t)n, LIMIT));
    }
    CHECK(h_datagram_receiver_close(receiver, LIMIT));
    CHECK(h_close(node, LIMIT, NULL));
}

static void sender(const char *role, const char *name) {
    (void)role;
    static const char *const questions[] = {"6 times 7", "the answer", "how many"};
    h_node_t *node;
    h_datagram_sender_t *sender;
    h_datagram_receiver_t *answers;
    h_ticket_t reply;
    CHECK(h_node_new(NULL, 0, &node));
    CHECK(h_datagram_receiver_new(node, 4096, &answers));
    CHECK(h_datagram_reply_ticket(answers, &reply));
    CHECK(h_datagram_sender_connect(node, name, LIMIT, &sender));
    for (int i = 0; i < 3; i++) {
        h_datagram_t answer;
        const void *text;
        size_t length;
        CHECK(h_datagram_send(sender, 0, questions[i], strlen(questions[i]), &reply, LIMIT));
        CHECK(h_datagram_receive(answers, LIMIT, &answer));
        /* Its bytes stand still until h_datagram_ready, so they need not be copied. */
        CHECK(h_datagram_data(answers, &text, &length));
        printf("%.*s\n", (int)length, (const char *)text);
        CHECK(h_datagram_ready(answers));
    }
    CHECK(h_datagram_sender_close(sender, LIMIT));
    CHECK(h_datagram_receiver_close(answers, LIMIT));
    CHECK(h_close(node, LIMIT, NULL));
}

int main(int argc, char **argv) {
    return run(argc, argv, receiver, sender);
}
