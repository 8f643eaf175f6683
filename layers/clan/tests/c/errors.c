/* Every error once, by its number and its text; what a caller can do wrong; and what the example leaves out. Two programs,
 * here two nodes of one, of which the server has a thread of progress. */
#include <clan.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MS 60000

static int failed;

static void expect(int line, long long is, long long wanted, const char *text)
{
    if (is == wanted && (!text || strstr(clan_error_text(), text)))
        return;
    failed = 1;
    fprintf(stderr, "errors.c:%d: %lld, \"%s\", where %lld and \"%s\" were expected\n", line, is, clan_error_text(), wanted,
            text ? text : "");
}

#define IS(call, wanted) expect(__LINE__, call, wanted, NULL)
#define FAILS(call, wanted, text) expect(__LINE__, call, wanted, text)
/* In turns of the client's, until the other end's thread has done its part. */
#define UNTIL(condition)                                                                                               \
    do {                                                                                                               \
        clan_event_t none_;                                                                                            \
        int turns_ = 0;                                                                                                \
        while (!(condition) && ++turns_ < MS) {                                                                        \
            IS(clan_events_poll(idle, &none_), 0);                                                                     \
            usleep(1000);                                                                                              \
        }                                                                                                              \
        expect(__LINE__, turns_ < MS, 1, NULL);                                                                        \
    } while (0)

static int calls;

static void call_back(void *argument)
{
    __atomic_fetch_add((int *)argument, 1, __ATOMIC_SEQ_CST);
}

/* Null and wrong arguments: EMISUSE, and no result is written. */
static void misuse(clan_t *clan, clan_endpoint_t *endpoint, clan_region_t *region, clan_aperture_t *aperture)
{
    char message[CLAN_OOB_BYTES];
    uint64_t word = 77;
    clan_t *no_clan = NULL;
    clan_wire_t *no_wire = NULL;
    clan_events_t *events, *no_events = NULL;
    clan_requests_t *requests, *no_requests = NULL;
    clan_settings_t settings = {0, 0, 0, 5000};
    clan_request_t request = {CLAN_PUT, region, 0, aperture, 0, 1};
    clan_event_t event = {1, 1};

    FAILS(clan_open(NULL, NULL), CLAN_EMISUSE, "null");
    FAILS(clan_open(&settings, &no_clan), CLAN_EMISUSE, "oob_max = 5000");
    FAILS(clan_listen(NULL, "errors", CLAN_SAME_USER), CLAN_EMISUSE, "null");
    FAILS(clan_listen(clan, NULL, CLAN_SAME_USER), CLAN_EMISUSE, "0x0");
    FAILS(clan_listen(clan, "\xff", CLAN_SAME_USER), CLAN_EMISUSE, "UTF-8");
    FAILS(clan_listen(clan, "errors", 7), CLAN_EMISUSE, "access 7");
    FAILS(clan_accept(clan, 0, NULL), CLAN_EMISUSE, "null");
    FAILS(clan_connect(clan, "errors", 0, NULL), CLAN_EMISUSE, "null");
    FAILS(clan_figures(clan, NULL), CLAN_EMISUSE, "null");
    FAILS(clan_descriptor(NULL), CLAN_EMISUSE, "null");
    FAILS(clan_endpoint_check(NULL), CLAN_EMISUSE, "null");
    FAILS(clan_send_oob(endpoint, message, CLAN_OOB_BYTES + 1, 0), CLAN_EMISUSE, "129 bytes");
    FAILS(clan_send_oob(endpoint, NULL, 1, 0), CLAN_EMISUSE, "0x0");
    FAILS(clan_send_oob(endpoint, message, (size_t)-1, 0), CLAN_EMISUSE, "18446744073709551615");
    FAILS(clan_take_oob(endpoint, NULL), CLAN_EMISUSE, "null");
    IS((long long)clan_oob_lost(NULL), 0);
    FAILS(clan_region_create(clan, 0, 0, &region), CLAN_EMISUSE, "0 bytes");
    FAILS(clan_region_map(endpoint, 1, 4, 0, &region), CLAN_EMISUSE, "rights 4");
    FAILS(clan_region_read(region, 4090, message, 7), CLAN_EMISUSE, "4090");
    FAILS(clan_region_load(region, 4, &word), CLAN_EMISUSE, "multiple of 8");
    IS(clan_region_address(NULL) == NULL, 1);
    FAILS(clan_export(region, endpoint, 0, 0, (clan_export_t *)message), CLAN_EMISUSE, "rights 0");
    FAILS(clan_wire_create(region, 0, 1, CLAN_READ | CLAN_WRITE, NULL, 0, &no_wire), CLAN_EMISUSE, "a wire");
    FAILS(clan_wire_create(region, 1, (uint64_t)-1, CLAN_READ, NULL, 0, &no_wire), CLAN_EMISUSE, "4096");
    FAILS(clan_import(endpoint, NULL, 0, &aperture), CLAN_EMISUSE, "null");
    FAILS(clan_put(aperture, 0, NULL, 1, 0), CLAN_EMISUSE, "0x0");
    FAILS(clan_put(aperture, 0, message, (size_t)-1 / 2 + 1, 0), CLAN_EMISUSE, "9223372036854775808");
    FAILS(clan_put(aperture, 4096, message, 1, 0), CLAN_EMISUSE, "4096");
    FAILS(clan_put_signal(aperture, 0, message, 1, 0, 0), CLAN_EMISUSE, "without signals");
    FAILS(clan_get(aperture, 0, NULL, 1, 0), CLAN_EMISUSE, "0x0");
    FAILS(clan_store(aperture, 0, message, 1), CLAN_EMISUSE, "not mapped");
    FAILS(clan_events_create(clan, 0, NULL, NULL, &no_events), CLAN_EMISUSE, "0 events");
    IS(clan_events_create(clan, 1, NULL, NULL, &events), 0);
    FAILS(clan_raise(events, 0), CLAN_EMISUSE, "0x0 is not an event");
    FAILS(clan_events_unregister(events, 5), CLAN_EMISUSE, "0x5 is not an event");
    FAILS(clan_endpoint_set_event(endpoint, events, 0), CLAN_EMISUSE, "not an event");
    FAILS(clan_events_take(events, NULL), CLAN_EMISUSE, "null");
    FAILS(clan_requests_create(clan, 0, 0, 64, &no_requests), CLAN_EMISUSE, "0 groups");
    IS(clan_requests_create(clan, 1, 0, 64, &requests), 0);
    FAILS(clan_requests_submit(requests, NULL, 1, NULL, 0, NULL, &word), CLAN_EMISUSE, "0x0");
    FAILS(clan_requests_submit(requests, &request, 0, NULL, 0, NULL, &word), CLAN_EMISUSE, "0 requests");
    FAILS(clan_requests_submit(requests, &request, (size_t)-1, NULL, 0, NULL, &word), CLAN_EMISUSE, "48 bytes");
    FAILS(clan_requests_submit(requests, &request, 1, NULL, 0, (uint64_t *)(message + 1), &word), CLAN_EMISUSE, "aligned");
    request.operation = 3;
    FAILS(clan_requests_submit(requests, &request, 1, NULL, 0, NULL, &word), CLAN_EMISUSE, "operation 3");
    request.region = NULL;
    FAILS(clan_requests_submit(requests, &request, 1, NULL, 0, NULL, &word), CLAN_EMISUSE, "null");
    IS(clan_requests_take_done(requests, (clan_done_t *)message), 0);
    IS(no_clan || no_wire || no_events || no_requests || event.event != 1 || word != 77, 0);
    clan_requests_close(requests);
    clan_events_close(events);
    clan_close(NULL);
    clan_wire_close(NULL);
}

int main(void)
{
    char bytes[CLAN_OOB_BYTES] = "some bytes";
    uint64_t event, other, word = 7, group;
    clan_t *server, *client;
    clan_endpoint_t *accepted, *connected, *more;
    clan_region_t *region, *mapped, *source;
    clan_aperture_t *aperture, *window;
    clan_events_t *idle, *heard;
    clan_requests_t *requests;
    clan_wire_t *wire;
    clan_settings_t settings = {1, 0, 0, 0};
    clan_export_t export_, second;
    clan_peer_t peer;
    clan_event_t came;
    clan_signal_t signal_;
    clan_done_t done;
    clan_figures_t figures;
    struct pollfd polled;

    IS(clan_error_text()[0], 0);
    IS(clan_open(&settings, &server), 0);
    IS(clan_open(NULL, &client), 0);
    IS(clan_events_create(client, 4, NULL, NULL, &idle), 0);
    IS(clan_listen(server, "errors", CLAN_SAME_USER), 0);
    IS(clan_start_progress(server), 0);
    FAILS(clan_listen(client, "errors", CLAN_SAME_USER), CLAN_EREFUSED, "in use");
    FAILS(clan_connect(client, "nobody", 1, &connected), CLAN_EREFUSED, "nothing is called nobody");
    IS(clan_connect(client, "errors", MS, &connected), 0);
    FAILS(clan_endpoint_open(connected, MS, &more), CLAN_EFULL, "backlog");
    IS(clan_accept(server, MS, &accepted), 0);
    FAILS(clan_accept(server, 1, &more), CLAN_ETIMEDOUT, "limit");
    IS(clan_endpoint_peer(connected, &peer), 0);
    IS(peer.pid == getpid() && peer.uid == (int64_t)getuid() && peer.is_proved && !peer.is_elsewhere, 1);

    /* A wire, with an event and a call-back. */
    IS(clan_region_create(server, 4096, 64, &region), 0);
    IS(clan_events_create(server, 1, call_back, &calls, &heard), 0);
    IS(clan_events_register(heard, 9, &event), 0);
    FAILS(clan_events_register(heard, 9, &other), CLAN_EFULL, "1 events");
    IS(clan_wire_create(region, 8, 8, CLAN_WRITE, heard, event, &wire), 0);
    IS(clan_export(region, accepted, CLAN_READ | CLAN_WRITE, 0, &export_), 0);
    FAILS(clan_import(connected, bytes, MS, &aperture), CLAN_EREFUSED, "handle");
    IS(clan_import(connected, export_.handle, MS, &aperture), 0);
    IS((long long)clan_aperture_bytes(aperture) + clan_aperture_rights(aperture), 4096 + 3);
    misuse(client, connected, region, aperture);
    IS(clan_put(aperture, 8, bytes, 8, MS), 0);
    IS(clan_events_wait(heard, MS, &came), 0);
    IS(came.user == 9 && came.event == event && clan_wire_has_fired(wire), 1);
    IS(clan_region_fired(region, 0) >> clan_wire_number(wire), 1);
    IS(clan_wire_arm(wire), 1);
    IS(clan_wire_arm(wire), 0);
    IS(__atomic_load_n(&calls, __ATOMIC_SEQ_CST), 1);
    IS(clan_wire_disable(wire), 0);
    IS(clan_put(aperture, 8, bytes, 8, MS), 0);
    IS(clan_get(aperture, 8, bytes + 16, 8, MS), 0);
    IS(memcmp(bytes, bytes + 16, 8) || clan_wire_has_fired(wire), 0);
    IS(memcmp((char *)clan_region_address(region) + 8, bytes, 8), 0);
    IS(clan_wire_enable(wire), 0);
    IS(clan_raise(heard, event), 1);
    IS(__atomic_load_n(&calls, __ATOMIC_SEQ_CST), 2);
    IS(clan_events_unregister(heard, event), 1);
    IS(clan_raise(heard, event), 0);
    FAILS(clan_events_wait(heard, 1, &came), CLAN_ETIMEDOUT, "limit");

    /* Signals, and a group of requests by word and by event. */
    IS(clan_region_create(client, 4096, 0, &source), 0);
    IS(clan_region_write(source, 0, "0123456789", 10), 0);
    IS(clan_export(region, accepted, CLAN_WRITE, 1, &second), 0);
    IS(clan_import(connected, second.handle, MS, &window), 0);
    IS(clan_put_signal(window, 0, bytes, 4, 55, MS), 0);
    FAILS(clan_put_signal(window, 0, bytes, 4, 56, 1), CLAN_ETIMEDOUT, "limit");
    UNTIL(clan_take_signal(region, &signal_) == 1);
    IS(signal_.word == 55 && signal_.number == second.number, 1);
    IS(clan_events_register(idle, 3, &event), 0);
    IS(clan_requests_create(client, 1, 0, 64, &requests), 0);
    {
        clan_request_t two[] = {{CLAN_PUT, source, 0, aperture, 100, 10}, {CLAN_GET, source, 20, aperture, 100, 10}};

        IS(clan_requests_submit(requests, two, 2, NULL, 0, &word, &group), 0);
        FAILS(clan_requests_submit(requests, two, 2, idle, event, NULL, &other), CLAN_EFULL, "1 groups");
        IS(clan_requests_wait(requests, MS, &done), 0);
        IS(done.group == group && done.result == 0 && __atomic_load_n(&word, __ATOMIC_ACQUIRE) == 1, 1);
        IS(clan_region_read(source, 20, bytes, 10), 0);
        IS(memcmp(bytes, "0123456789", 10), 0);
        IS(clan_requests_submit(requests, two, 1, idle, event, NULL, &group), 0);
        IS(clan_events_wait(idle, MS, &came), 0);
        IS(clan_requests_take_done(requests, &done), 1);
        IS(came.user == 3 && done.group == group && done.result == 0, 1);
    }

    /* An event loop. */
    IS(clan_endpoint_set_event(connected, idle, event), 0);
    while (clan_events_prepare_to_wait(idle) == 0)
        clan_events_poll(idle, &came);
    IS(clan_send_oob(accepted, "wake", 5, MS), 0);
    polled.fd = clan_descriptor(client);
    polled.events = POLLIN;
    IS(poll(&polled, 1, MS), 1);
    IS(clan_events_wait(idle, MS, &came), 0);
    IS(clan_take_oob(connected, bytes), 1);
    IS(strcmp(bytes, "wake"), 0);
    IS(clan_take_oob(connected, bytes), 0);
    IS(clan_endpoint_set_event(connected, NULL, 0), 0);

    /* A mapped region: a store trips nothing, a put does. */
    IS(clan_region_map(accepted, 4096, CLAN_READ | CLAN_WRITE, 1, &mapped), 0);
    IS(clan_export(mapped, accepted, CLAN_READ | CLAN_WRITE, 0, &second), 0);
    clan_aperture_close(window);
    IS(clan_import(connected, second.handle, MS, &window), 0);
    IS(clan_aperture_is_mapped(window) && !clan_aperture_is_mapped(aperture), 1);
    clan_wire_close(wire);
    IS(clan_wire_create(mapped, 0, 8, CLAN_WRITE, NULL, 0, &wire), 0);
    IS(clan_store(window, 0, "stored..", 8), 0);
    IS(clan_load(window, 0, bytes, 8), 0);
    IS(memcmp(bytes, "stored..", 8) || clan_wire_has_fired(wire), 0);
    IS(clan_put(window, 0, "put.....", 8, MS), 0);
    UNTIL(clan_wire_has_fired(wire));
    FAILS(clan_region_address(mapped) != NULL, 0, "mapped");

    /* Taken back, and closed: in any order. */
    IS(clan_revoke(region, &second), 0);
    IS(clan_revoke(region, &export_), 0);
    UNTIL(clan_put(aperture, 0, bytes, 1, MS) == CLAN_EREVOKED);
    FAILS(clan_get(aperture, 0, bytes, 1, MS), CLAN_EREVOKED, "taken back");
    clan_close(server);
    IS(clan_store(window, 0, bytes, 1), 0);
    clan_endpoint_close(accepted);
    UNTIL(clan_endpoint_check(connected) == CLAN_ECLOSED);
    FAILS(clan_receive_oob(connected, bytes, MS), CLAN_ECLOSED, "closed");
    FAILS(clan_send_oob(connected, bytes, 1, MS), CLAN_ECLOSED, "closed");
    FAILS(clan_store(window, 0, bytes, 1), CLAN_ECLOSED, "closed");
    IS(clan_figures(client, &figures), 0);
    IS(figures.oob_received == 1 && figures.requests_completed >= 3 && figures.refused == 0, 1);
    clan_close(client);
    clan_endpoint_close(connected);
    clan_requests_close(requests);
    clan_aperture_close(aperture);
    clan_events_close(heard);
    clan_wire_close(wire);
    clan_region_close(mapped);
    clan_region_close(region);
    clan_region_close(source);
    clan_aperture_close(window);
    clan_events_close(idle);
    puts(failed ? "errors: FAILED" : "errors");
    return failed;
}
