/* Tell me when somebody writes there: one program waits for a word of its memory, another writes it. */
#include <clan.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define LIMIT_MS 10000

static void check(int result)
{
    if (result < 0) {
        fprintf(stderr, "%s\n", clan_error_text());
        exit(1);
    }
}

static void write_there(void)
{
    uint64_t value = 42;
    unsigned char handle[CLAN_OOB_BYTES];
    clan_t *clan;
    clan_endpoint_t *there;
    clan_aperture_t *aperture;

    check(clan_open(NULL, &clan));
    check(clan_connect(clan, "board", LIMIT_MS, &there));
    check(clan_receive_oob(there, handle, LIMIT_MS));
    check(clan_import(there, handle, LIMIT_MS, &aperture));
    check(clan_put(aperture, 0, &value, sizeof value, LIMIT_MS));
    check(clan_receive_oob(there, handle, LIMIT_MS)); /* It was seen. */
    clan_aperture_close(aperture);
    clan_endpoint_close(there);
    clan_close(clan);
}

int main(void)
{
    uint64_t value, event;
    int status;
    clan_t *clan;
    clan_endpoint_t *here;
    clan_region_t *region;
    clan_events_t *events;
    clan_wire_t *wire;
    clan_export_t export_;
    clan_event_t came;
    pid_t child = fork(); /* Before anything is opened. */

    if (child == 0) {
        write_there();
        return 0;
    }
    check(clan_open(NULL, &clan));
    check(clan_listen(clan, "board", CLAN_SAME_USER));
    check(clan_accept(clan, LIMIT_MS, &here));
    check(clan_region_create(clan, 4096, 16, &region)); /* Memory, and up to 16 wires on it. */
    check(clan_events_create(clan, 100, NULL, NULL, &events));
    check(clan_events_register(events, 7, &event));
    check(clan_wire_create(region, 0, 8, CLAN_WRITE, events, event, &wire));
    check(clan_export(region, here, CLAN_WRITE, 0, &export_));
    check(clan_send_oob(here, export_.handle, sizeof export_.handle, LIMIT_MS));
    check(clan_events_wait(events, LIMIT_MS, &came));
    check(clan_wire_arm(wire)); /* First armed, then looked at: nothing is lost in between. */
    check(clan_region_load(region, 0, &value));
    printf("event %" PRIu64 ": %" PRIu64 "\n", came.user, value);
    check(clan_send_oob(here, "seen", 4, LIMIT_MS));
    waitpid(child, &status, 0);
    clan_wire_close(wire);
    clan_events_close(events);
    clan_region_close(region);
    clan_endpoint_close(here);
    clan_close(clan);
    return came.user != 7 || value != 42 || status != 0;
}
