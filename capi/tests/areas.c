/*
 * Message areas over pages at an address of the application's own: messages land in them even while
 * the application protects them from itself.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "that.h"
#include <fcntl.h>
#include <sys/mman.h>

#define BYTES 8192

static h_node_t *node;
static h_queue_t queue;
static unsigned char sent[BYTES];

/* Fills the area by messages from this node to itself. */
static void deposit(h_area_t area, int byte) {
    h_slot_config_t config;
    h_slot_t slot;
    h_ticket_t ticket;
    h_notification_t message;
    memset(&config, 0, sizeof config);
    config.area = area;
    config.queue = queue;
    CHECK(h_slot_new(node, &config, &slot));
    CHECK(h_ticket(node, slot, 0, &ticket));
    memset(sent, byte, sizeof sent);
    CHECK(h_send_msg(node, &ticket, sent, sizeof sent, NULL, 0, LIMIT, NULL));
    CHECK(h_recv_block(node, queue, LIMIT, &message));
    CHECK(h_slot_free(node, slot));
}

static unsigned char *reserved(void) {
    void *start = mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    THAT(start != MAP_FAILED);
    return (unsigned char *)start;
}

static void at_an_address(void) {
    unsigned char *start = reserved();
    h_area_t area, none;
    void *library;
    size_t bytes;
    THAT(h_area_over(node, start + 1, BYTES, &none) == H_INVALID);
    THAT(strstr(h_error_message(), "multiple of the page size"));
    THAT(h_area_over(node, start, BYTES + 1, &none) == H_INVALID);
    CHECK(h_area_over(node, start, BYTES, &area));
    THAT(start[0] == 0);
    THAT(mprotect(start, BYTES, PROT_NONE) == 0);
    deposit(area, 1);
    THAT(mprotect(start, BYTES, PROT_READ) == 0);
    THAT(memcmp(start, sent, BYTES) == 0);
    deposit(area, 2);
    THAT(memcmp(start, sent, BYTES) == 0);
    CHECK(h_area_data(node, area, &library, &bytes));
    THAT(library != start && bytes == BYTES);
    CHECK(h_area_free(node, area));
    THAT(start[BYTES - 1] == 2);
    THAT(munmap(start, BYTES) == 0);
    THAT(h_area_over(node, start, BYTES, &none) == H_INVALID);
    THAT(strstr(h_error_message(), "mapped"));
}

static void of_a_file(void) {
    int file = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    h_area_t area, none;
    h_slot_config_t config;
    h_slot_t slot;
    h_ticket_t ticket;
    h_notification_t message;
    h_piece_t piece;
    unsigned char *start;
    uint8_t tag;
    THAT(file >= 0 && ftruncate(file, 2 * BYTES) == 0);
    THAT(h_area_of_file(node, -1, 0, BYTES, &none) == H_INVALID);
    THAT(h_area_of_file(node, file, 0, BYTES, &none) == H_INVALID);
    THAT(strstr(h_error_message(), "F_SEAL_SHRINK"));
    THAT(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    THAT(h_area_of_file(node, file, 2 * BYTES, BYTES, &none) == H_INVALID);
    CHECK(h_area_of_file(node, file, BYTES, BYTES, &area));
    start = (unsigned char *)mmap(NULL, BYTES, PROT_READ, MAP_SHARED, file, BYTES);
    THAT(start != MAP_FAILED);
    deposit(area, 3);
    THAT(memcmp(start, sent, BYTES) == 0);
    THAT(mprotect(start, BYTES, PROT_NONE) == 0);
    deposit(area, 4);

    /* The same bytes are sent, to the file's other half. */
    CHECK(h_send_buffer_of_file(node, file, BYTES, BYTES, &tag));
    CHECK(h_area_of_file(node, file, 0, BYTES, &none));
    close(file);
    memset(&config, 0, sizeof config);
    config.area = none;
    config.queue = queue;
    CHECK(h_slot_new(node, &config, &slot));
    CHECK(h_ticket(node, slot, 0, &ticket));
    piece.tag = tag;
    piece.offset = 0;
    piece.length = BYTES;
    CHECK(h_post_send(node, &ticket, &piece, 1, NULL, 0, NULL));
    CHECK(h_flush(node, LIMIT));
    CHECK(h_recv_block(node, queue, LIMIT, &message));
    {
        unsigned char found[BYTES];
        CHECK(h_area_read(node, none, 0, found, BYTES));
        THAT(memcmp(found, sent, BYTES) == 0);
    }
    CHECK(h_slot_free(node, slot));
    CHECK(h_area_free(node, none));
    CHECK(h_send_buffer_free(node, tag));
    CHECK(h_area_free(node, area));
    THAT(munmap(start, BYTES) == 0);
}

static void sent_from_an_address(void) {
    unsigned char *start = reserved();
    h_area_t area;
    h_slot_config_t config;
    h_slot_t slot;
    h_ticket_t ticket;
    h_notification_t message;
    h_piece_t piece;
    uint8_t tag;
    CHECK(h_send_buffer_over(node, start, BYTES, &tag));
    memset(start, 5, BYTES);
    THAT(mprotect(start, BYTES, PROT_NONE) == 0);
    CHECK(h_area_new(node, BYTES, &area));
    memset(&config, 0, sizeof config);
    config.area = area;
    config.queue = queue;
    CHECK(h_slot_new(node, &config, &slot));
    CHECK(h_ticket(node, slot, 0, &ticket));
    piece.tag = tag;
    piece.offset = 100;
    piece.length = 1;
    CHECK(h_post_send(node, &ticket, &piece, 1, NULL, 0, NULL));
    CHECK(h_flush(node, LIMIT));
    CHECK(h_recv_block(node, queue, LIMIT, &message));
    {
        unsigned char found;
        CHECK(h_area_read(node, area, 0, &found, 1));
        THAT(found == 5);
    }
    CHECK(h_send_buffer_free(node, tag));
    THAT(munmap(start, BYTES) == 0);
}

int main(void) {
    CHECK(h_node_new(NULL, 0, &node));
    CHECK(h_queue_new(node, 1, &queue));
    at_an_address();
    of_a_file();
    sent_from_an_address();
    h_node_free(node);
    return 0;
}
