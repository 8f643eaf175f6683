/* CLAN on Hamlyn. Sections in brackets are of K. Mansley et al., A Low Overhead Application/Device-driver Interface for
 * User-level Networking; [ours]: the paper has no such call. Link with -lhamlynclan (pkg-config hamlyn-clan).
 *
 * Results: an int is 0, or a count, or a negative number below, for which clan_error_text() has the reason. A call that
 * fails writes no result. Lengths and offsets are in bytes; `ms` is a limit in milliseconds: -1: none; 0: does not wait.
 * Threads: any thread may call anything at any time, except that nothing may be closed while another call uses it.
 * Objects are closed in any order, each once; NULL is ignored. A closed clan_t lives on while one of its objects does.
 * A child made by fork cannot use what its parent has opened. "One load": the call takes no lock and no turn.
 * Turns: messages of peers are taken, and those that wait here leave, while a thread waits or polls. clan_start_progress gives
 * that work a thread. A program without it that makes no calls stops those who send to it, and nobody else.
 * Tripwires hear clan_put, clan_put_signal, clan_get and requests. They do NOT hear clan_store and clan_load through a
 * mapped aperture: a processor then uses the owner's page itself, and no packet says so. Store, then ring a doorbell:
 * clan_put into a wired word, which trips. The owner's own writes trip nothing.
 */
#ifndef CLAN_H
#define CLAN_H

#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

#define CLAN_EFULL -1     /* no room: a table, a queue or the peer's backlog has as many as it may */
#define CLAN_EREVOKED -2  /* the region's owner has taken it back */
#define CLAN_ECLOSED -3   /* the other end is closed, or its program has ended */
#define CLAN_EMISUSE -4   /* an argument is null or out of range, or the call is not allowed here: of every call */
#define CLAN_EREFUSED -5  /* the system or the peer refused something */
#define CLAN_ETIMEDOUT -6 /* the limit passed: of every call with `ms` */
#define CLAN_EPANIC -7    /* a mistake of the library */
/* Why this thread's last failed call failed, with values. Never NULL; valid until its next one that fails. */
const char *clan_error_text(void);
typedef struct clan clan_t;                   /* a program's place in the network */
typedef struct clan_endpoint clan_endpoint_t; /* one end of a connection */
typedef struct clan_region clan_region_t;     /* memory here that peers may use */
typedef struct clan_wire clan_wire_t;         /* a tripwire on a region */
typedef struct clan_aperture clan_aperture_t; /* a window onto a peer's region */
typedef struct clan_events clan_events_t;     /* a queue of events */
typedef struct clan_requests clan_requests_t; /* a queue of requests for the engine */

/* 0: the default: end points that wait to be accepted 128, end points of a peer 65536, peers 1024, out-of-band messages
 * that wait at an end point 16. The node's own are variables of the environment: HAMLYN_DIR, HAMLYN_SPIN_NS, .. */
typedef struct { uint32_t backlog, endpoints_of_peer_max, peers_max, oob_max; } clan_settings_t;
/* Settings may be NULL. EREFUSED: the system has no room for a node. [ours] */
int clan_open(const clan_settings_t *settings, clan_t **clan);
/* Close end points first: their peers hear of an open one only when the program ends. */
void clan_close(clan_t *clan);
int clan_start_progress(clan_t *clan); /* a thread of the library's takes turns from now on, also of the engine [ours] */
typedef struct {
    uint64_t oob_received, refused, late, thrown_away; /* from peers: all; against the rules; for what was gone; too many */
    uint64_t bytes_read_by_peers, bytes_moved, requests_completed; /* the last two: by the engine */
} clan_figures_t;
int clan_figures(clan_t *clan, clan_figures_t *figures); /* counts since clan_open [ours] */

/* Events [3.4]: raising and taking cost the same however many are registered. An event is a number, never 0. A call with
 * `events, event` raises that event; NULL: none. The queue is for 1 to 2^24 events. `call_back` or NULL: the paper's
 * wait-queue call-back; each raise calls it, in any thread; it must be short, and call nothing of this library. */
int clan_events_create(clan_t *clan, uint32_t events_max, void (*call_back)(void *), void *argument, clan_events_t **events);
void clan_events_close(clan_events_t *events);
int clan_events_register(clan_events_t *events, uint64_t user, uint64_t *event); /* EFULL: events_max are registered */
int clan_events_unregister(clan_events_t *events, uint64_t event); /* it is taken no more. 1; 0: it was not registered */
int clan_raise(clan_events_t *events, uint64_t event); /* each is queued once at most. 1; 0: it is not registered */
typedef struct { uint64_t event, user; } clan_event_t; /* its number, and its word of clan_events_register */
/* The next event: 1; none: 0; takes no turn. Look at all that it is about: it is not raised again for that. */
int clan_events_take(clan_events_t *events, clan_event_t *event);
int clan_events_poll(clan_events_t *events, clan_event_t *event); /* the same; takes one turn if there is none */
int clan_events_wait(clan_events_t *events, int ms, clan_event_t *event); /* the next one; spins, then sleeps */
/* For epoll and others [ours]: a descriptor of the clan_t's, not to be closed. Before sleeping on it, for each queue:
 * 1: it may sleep, and polls when the descriptor is readable; 0: something came: poll, and call this again. */
int clan_descriptor(clan_t *clan);
int clan_events_prepare_to_wait(clan_events_t *events);

/* Connections [2]. `name`: [user@]name, or of another host. listen: EREFUSED: it is in use, or not permitted. */
#define CLAN_SAME_USER 1
#define CLAN_ANYBODY 2
int clan_listen(clan_t *clan, const char *name, int access);
int clan_accept(clan_t *clan, int ms, clan_endpoint_t **endpoint); /* the next that a peer has opened */
int clan_set_accept_event(clan_t *clan, clan_events_t *events, uint64_t event); /* whenever there is one to accept */
/* Waits for the name, too. EREFUSED: nobody has it, or the peer's program refuses; EFULL: the peer's backlog. */
int clan_connect(clan_t *clan, const char *name, int ms, clan_endpoint_t **endpoint);
int clan_endpoint_open(clan_endpoint_t *endpoint, int ms, clan_endpoint_t **another); /* one more over the same link */
void clan_endpoint_close(clan_endpoint_t *endpoint); /* tells the peer; takes back what was exported to it */
int clan_endpoint_check(clan_endpoint_t *endpoint);  /* ECLOSED, or 0. One load [3.1] */
/* Whenever an out-of-band message comes, and when the other end closes [3.4]. */
int clan_endpoint_set_event(clan_endpoint_t *endpoint, clan_events_t *events, uint64_t event);
/* [ours] From the kernel, -1: not known; it is proved to be the node that it says; it is on another host. ECLOSED */
typedef struct { int64_t uid, gid, pid; int is_proved, is_elsewhere; } clan_peer_t;
int clan_endpoint_peer(clan_endpoint_t *endpoint, clan_peer_t *peer);

/* Out-of-band messages [3.1]: up to so many bytes, filled up with zeros. The receiver throws away those beyond oob_max.
 * Whatever was sent, CLAN_OOB_BYTES are written to `message`. */
#define CLAN_OOB_BYTES 128
int clan_send_oob(clan_endpoint_t *endpoint, const void *bytes, size_t length, int ms); /* ECLOSED */
int clan_take_oob(clan_endpoint_t *endpoint, void *message); /* 1; none: 0, one load; ECLOSED: and none will come */
int clan_receive_oob(clan_endpoint_t *endpoint, void *message, int ms); /* waits for one. ECLOSED */
uint64_t clan_oob_lost(clan_endpoint_t *endpoint);                      /* thrown away here, since the beginning */

/* Regions [2], with up to wires_max wires, rounded up to a multiple of 64. Of the first kind, peers' puts are packets, each checked. Of the second, this
 * peer maps whole pages, and loads or stores itself; EREFUSED: it is on another host, or of another user. */
#define CLAN_READ 1
#define CLAN_WRITE 2 /* CLAN_READ | CLAN_WRITE: both */
int clan_region_create(clan_t *clan, uint64_t bytes, uint32_t wires_max, clan_region_t **region);
int clan_region_map(clan_endpoint_t *endpoint, uint64_t bytes, int rights, uint32_t wires_max, clan_region_t **region);
void clan_region_close(clan_region_t *region); /* takes it back from all peers */
uint64_t clan_region_bytes(clan_region_t *region);
void *clan_region_address(clan_region_t *region); /* peers may be writing there, as threads do. NULL: it is mapped */
int clan_region_read(clan_region_t *region, uint64_t offset, void *to, size_t length);
int clan_region_write(clan_region_t *region, uint64_t offset, const void *from, size_t length);
int clan_region_load(clan_region_t *region, uint64_t offset, uint64_t *word); /* an aligned word, atomically: acquire */
/* The words by which this peer, and nobody else, imports the region; they fit into an out-of-band message. ECLOSED.
 * `signals`: how many may wait here; 0: none. An export of another region is not revoked. */
#define CLAN_HANDLE_BYTES 120
typedef struct { unsigned char handle[CLAN_HANDLE_BYTES]; uint32_t number; } clan_export_t;
int clan_export(clan_region_t *region, clan_endpoint_t *to, int rights, uint32_t signals, clan_export_t *export_);
int clan_revoke(clan_region_t *region, const clan_export_t *export_);
/* [ours] The next clan_put_signal, once: its word, and its export's number: 1; none: 0. And an event whenever one comes. */
typedef struct { uint32_t word, number; } clan_signal_t;
int clan_take_signal(clan_region_t *region, clan_signal_t *signal);
int clan_set_signal_event(clan_region_t *region, clan_events_t *events, uint64_t event);

/* A tripwire [3.3] on puts (CLAN_WRITE) or gets (CLAN_READ) of peers, enabled and armed. EFULL: wires_max. */
int clan_wire_create(clan_region_t *region, uint64_t offset, uint64_t length, int on, clan_events_t *events,
                     uint64_t event, clan_wire_t **wire);
void clan_wire_close(clan_wire_t *wire);
int clan_wire_enable(clan_wire_t *wire);
int clan_wire_disable(clan_wire_t *wire);
int clan_wire_has_fired(clan_wire_t *wire); /* 1 or 0. One load */
int clan_wire_arm(clan_wire_t *wire); /* 1: it had fired; 0. Arm, then look at the bytes, then wait: nothing is lost */
uint64_t clan_region_fired(clan_region_t *region, size_t word); /* 64 fired bits: one load */
int clan_wire_number(clan_wire_t *wire); /* n: it has bit n % 64 of word n / 64 */

/* An aperture [2] onto a peer's region; `handle`: CLAN_HANDLE_BYTES from that peer. EREFUSED: not a handle. Import each
 * once: closing the aperture gives the region back. ECLOSED */
int clan_import(clan_endpoint_t *endpoint, const void *handle, int ms, clan_aperture_t **aperture);
void clan_aperture_close(clan_aperture_t *aperture);
uint64_t clan_aperture_bytes(clan_aperture_t *aperture);
int clan_aperture_rights(clan_aperture_t *aperture); /* CLAN_READ, CLAN_WRITE, or both */
int clan_aperture_is_mapped(clan_aperture_t *aperture);
/* All of these: ECLOSED; EREVOKED; EMISUSE: outside of the region or of the rights. Puts over a link arrive in order, in
 * turns of the owner, and trip its wires; of a long one that fails a part may arrive. */
int clan_put(clan_aperture_t *aperture, uint64_t offset, const void *from, size_t length, int ms);
/* [ours] And gives the owner a signal; waits while as many as it allows wait. ETIMEDOUT: no signal was given. */
int clan_put_signal(clan_aperture_t *aperture, uint64_t offset, const void *from, size_t length, uint32_t word, int ms);
/* The owner's program answers, and trips its wires; a mapped region is loaded, which trips none. */
int clan_get(clan_aperture_t *aperture, uint64_t offset, void *to, size_t length, int ms);
/* Programmed stores and loads, of a mapped one: at once, without the owner. No wire hears them: see the top. */
int clan_store(clan_aperture_t *aperture, uint64_t offset, const void *from, size_t length);
int clan_load(clan_aperture_t *aperture, uint64_t offset, void *to, size_t length);

/* Remote requests [3.2]: a queue of 1 to 4096 groups, which the engine serves in turns by priority, 255 first; of equals
 * it moves 64 to 1048576 bytes_at_once of each. Closing the queue forgets what is not complete. */
int clan_requests_create(clan_t *clan, uint32_t groups_max, uint8_t priority, uint32_t bytes_at_once, clan_requests_t **requests);
void clan_requests_close(clan_requests_t *requests);
#define CLAN_PUT 1 /* from the region to the aperture */
#define CLAN_GET 2 /* the other way */
typedef struct {
    int operation; clan_region_t *region; uint64_t region_offset; clan_aperture_t *aperture; uint64_t aperture_offset, length;
} clan_request_t;
/* 1 to 64 requests as one group, numbered `group`; several, of 1 MiB at most, are served without equals in between.
 * `word` or NULL: it becomes 0 now, then 1, or 2 if the group failed; read it atomically, and keep it until then or until
 * the queue is closed. Or an event, not both. EFULL: groups_max are in the queue, or complete and not taken. */
int clan_requests_submit(clan_requests_t *requests, const clan_request_t *array, size_t count, clan_events_t *events,
                         uint64_t event, uint64_t *word, uint64_t *group);
/* A complete group: 1; none: 0. `result`: 0, or that of its first request that failed, with clan_error_text(). */
typedef struct { uint64_t group; int result; } clan_done_t;
int clan_requests_take_done(clan_requests_t *requests, clan_done_t *done); /* takes no turn */
int clan_requests_wait(clan_requests_t *requests, int ms, clan_done_t *done);

#ifdef __cplusplus
}
#endif
#endif
