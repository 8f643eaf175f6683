/*
 * Hamlyn: messages between programs that do not trust one another, at the speed of memory.
 * For C99 and later, and C++11 and later. Made from the source: do not edit.
 *
 * The rules for every function, unless it says otherwise:
 *
 * Results. Most functions return an h_status; H_OK is 0. h_error_message() is the text of this
 * thread's last failure. Outputs, the pointers at the end of the list of arguments, are written
 * only if the call succeeds. A failed call has done nothing, and can be made again, with these
 * exceptions: h_request_reply, h_request_fail, h_close and every h_.._close free their object,
 * whatever the result (except H_INVALID), and must not be called twice; after H_INCOMPLETE and
 * H_CUT_OFF a part has left.
 *
 * Arguments. A null or misaligned pointer in the place of a valid one is H_INVALID, with a text that
 * names it. The library cannot check the rest; the caller ensures that a pointer points to as much
 * memory as the call says, and that a handle has not been freed. Data pointers may be null if their
 * length is 0. Text is UTF-8 and ends in a zero byte.
 *
 * Ownership. An object that h_.._new and the like return through a pointer to a pointer is freed with
 * the function of that name, once. h_area_t, h_queue_t, h_slot_t, h_link_t, h_handle_t and h_ticket_t
 * are values. No argument is kept: it has been copied, or used, when the call returns.
 *
 * Threads. Any number of threads may call with the same node or end point, except that no thread may
 * be in a call with an object while it is freed, nor make one afterwards. Servers, clients, publishers
 * and byte streams work for several threads at once. The other end points serve one call at a time: a
 * second call waits for the first within its own time limit; a function without timeout_ns, even one
 * that only asks for a number, waits for ten seconds (H_STATE). A receive lets others in while it
 * waits, except h_tagged_get_specific_tag; sends and calls of groups do not.
 *
 * A call stops waiting when its event comes, its time limit passes, or its link ends. Another thread
 * ends h_server_receive with h_server_drain, and h_client_finish with h_client_forget; no other call,
 * such as h_recv_block or h_client_call, can be ended from elsewhere. A thread that has to end some day
 * gives a limit of, say, a tenth of a second, and calls again.
 *
 * Signals. No function may be called from a signal handler. A signal ends no call that waits.
 *
 * Time limits are nanoseconds, as int64_t: 0 does not wait, a negative one (H_FOREVER) waits without
 * limit. A stopped process does not count as dead, so give limits.
 *
 * Bugs of the library itself are caught and become H_PANIC. No call aborts the process because of its
 * arguments, or of anything that another process does.
 *
 * After fork() nodes and the objects made from them are the parent's; the child gets H_FORKED.
 */


#ifndef HAMLYN_H
#define HAMLYN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/// Without a time limit.
#define H_FOREVER -1

/// Bytes of a counter's name, with the zero byte that ends it.
#define H_COUNTER_NAME_BYTES 64

/// Most bytes of user metadata in a message.
#define H_METADATA_MAX 60

/// Bytes of a ticket.
#define H_TICKET_BYTES 44

/// Most bytes of a greeting.
#define H_GREETING_BYTES_MAX 4096

/// Room for the address of another host, and a zero byte.
#define H_ADDRESS_BYTES 64

/// Room for the proven identity of another host, and a zero byte.
#define H_IDENTITY_BYTES 256

/// Room for the text of an event, and a zero byte.
#define H_EVENT_TEXT_BYTES 4097

/// The index of a message in fast mode, which has no metadata entry.
#define H_INDEX_FAST UINT32_MAX

/// Most bytes of a seed.
#define H_SEED_BYTES_MAX 137

/// Room for a seed as text, and the zero byte that ends it.
#define H_SEED_TEXT_BYTES 275

/// Bytes of a delegated part.
#define H_PART_BYTES 52

/// For h_subscribe_config_t::history: no samples that were published before.
#define H_HISTORY_NONE 4294967295

/// The result of a call. `H_OK` is 0. `h_error_message` explains every other value.
///
/// `H_NOTHING`, `H_FULL` and `H_TIMED_OUT` mean "not now"; the others mean that this call, with
/// these arguments, cannot succeed.
typedef enum {
    /// Done.
    H_OK = 0,
    /// Not now: nothing has arrived, or no event waits. Nothing was taken.
    H_NOTHING = 1,
    /// Not now: both the link and the work queue are full, or the other side has no room. Nothing
    /// was sent.
    H_FULL = 2,
    /// The time limit has passed. Nothing was taken, nothing was sent.
    H_TIMED_OUT = 3,
    /// The time limit passed after part of a long message had left. It will never be complete.
    H_INCOMPLETE = 4,
    /// An argument is not allowed: null, misaligned, out of range, not UTF-8. Nothing was done.
    H_INVALID = 5,
    /// The object that the argument names does not exist: it was removed, or belongs to another
    /// node.
    H_NO_SUCH = 6,
    /// More bytes than there is room for, or than a ticket, a packet or a greeting allows.
    H_TOO_LONG = 7,
    /// A maximum of the settings, a quota or the system is reached.
    H_LIMIT = 8,
    /// In use: a service's name by another process, an area or a queue by slots.
    H_IN_USE = 9,
    /// No service has this name, or its process is gone.
    H_NOT_FOUND = 10,
    /// Not permitted, or the other side refused.
    H_REFUSED = 11,
    /// No link leads there, or another host cannot be reached.
    H_UNREACHABLE = 12,
    /// The other side closed, or is gone. For a stream (h_stream_receive) it means that the sender
    /// has sent everything; a byte stream reports that as a length of 0.
    H_CLOSED = 13,
    /// The process at the other end died.
    H_DIED = 14,
    /// The other side broke the rules, and was disconnected.
    H_MISBEHAVED = 15,
    /// These bytes are not a seed, or not one for this use.
    H_SEED = 16,
    /// The object's present state does not allow the call.
    H_STATE = 17,
    /// The process is a child, by fork, of the one that made the node.
    H_FORKED = 18,
    /// The system refused.
    H_SYSTEM = 19,
    /// The time limit passed when part of the message had left. The rest was copied, and leaves
    /// first in the next call; do not send the message again.
    H_CUT_OFF = 20,
    /// The server's program answered with an error of its own: h_error_message is its text, and
    /// h_error_code its code.
    H_APPLICATION = 21,
    /// The other side ended the link before all of its queued messages had left, or reports that
    /// this side broke the rules: messages may be missing. Possible wherever `H_DIED` is.
    H_HUNG_UP = 22,
    /// For a call: the server is about to close, and has not taken the request. It will not be
    /// carried out, and may be sent to the next server of the name.
    H_DRAINING = 23,
    /// The other side speaks another version of the protocol.
    H_VERSION = 24,
    /// For another host: one end does not trust the other's certificate, or it is for another name,
    /// or has expired; or one end could not prove which node it is; or the other side does not
    /// speak TLS.
    H_UNTRUSTED = 25,
    /// For another host: the two do not have the same secret.
    H_SECRET = 26,
    /// The name of another host has no address.
    H_NO_HOST = 27,
    /// A bug of the library: it panicked, and the panic was caught. Report it, with the text. The
    /// object of the call is in a state between two steps of the call, and is best freed.
    H_PANIC = 99,
} h_status;

/// The kind of an event.
typedef enum {
    /// A process wants to connect to a service of h_serve_asking: `request`, `peer`; `text` is its
    /// greeting.
    H_EVENT_REQUEST = 0,
    /// A request was withdrawn before it was answered, or did not become a link: `request`.
    H_EVENT_REQUEST_GONE = 1,
    /// Another node has made a link: `link`, `peer`, and `request` if it was asked for.
    H_EVENT_CONNECTED = 2,
    /// The other side closed the link, and had sent everything: `link`, `unsent`.
    H_EVENT_CLOSED = 3,
    /// The process at the other end died: `link`, `unsent`.
    H_EVENT_DIED = 4,
    /// The other side closed without a goodbye, with messages that had not left: `link`, `unsent`.
    H_EVENT_HUNG_UP = 5,
    /// The other side broke the rules, and this node closed the link: `link`, `unsent`; `text`
    /// names the rule.
    H_EVENT_MISBEHAVED = 6,
    /// The other side says that this node broke the rules, and closed the link: `link`, `unsent`.
    H_EVENT_EXPELLED = 7,
    /// The other side holds an aperture that this node exported: `link`, `aperture`.
    H_EVENT_APERTURE_READY = 8,
    /// An aperture that this node exported has no holder and will have none; its memory was given
    /// back: `link`, `aperture`; `text` gives the reason.
    H_EVENT_APERTURE_REFUSED = 9,
    /// The other side has released an aperture that this node exported: `link`, `aperture`.
    H_EVENT_APERTURE_RELEASED = 10,
    /// This node holds an aperture that the other side exported: `link`, `aperture`.
    H_EVENT_APERTURE_HELD = 11,
    /// The other side revoked an aperture that this node held: `link`, `aperture`.
    H_EVENT_APERTURE_REVOKED = 12,
    /// The other side refused messages because one of its tickets has been revoked: `link`;
    /// `request` names the ticket.
    H_EVENT_TICKET_REVOKED = 13,
    /// This process can no longer watch the link, because the system refuses the resources for
    /// that: `link`, `unsent`.
    H_EVENT_UNWATCHED = 14,
} h_event_kind;

/// The connection's state of a client that connects again.
typedef enum {
    /// It has a connection.
    H_CONNECTED = 0,
    /// It tries to connect.
    H_RECONNECTING = 1,
    /// The policy allows no more attempts. It stays so.
    H_GIVEN_UP = 2,
} h_connection_state;

/// The checks of a slot for each packet.
typedef enum {
    /// The slot's key and bounds.
    H_MODE_NORMAL = 0,
    /// Key and limits of the metadata entry as well: senders that do not trust one another.
    H_MODE_PARANOID = 1,
    /// As paranoid, and an entry accepts one message until it is armed again: the bytes of an
    /// arrived message are stable.
    H_MODE_PARANOID_ONE_SHOT = 2,
} h_mode;

/// The processes that may connect to a service.
typedef enum {
    /// The same user. The name lies in this user's own directory.
    H_ACCESS_SAME_USER = 0,
    /// Members of a group, and the same user. The name lies in the shared directory.
    H_ACCESS_GROUP = 1,
    /// All users. The name lies in the shared directory.
    H_ACCESS_ANYONE = 2,
} h_access;

/// The protocol of an end point.
typedef enum {
    /// Simple datagrams.
    H_KIND_DATAGRAM = 1,
    /// Tagged remote write.
    H_KIND_TAGGED = 2,
    /// A stream of records.
    H_KIND_STREAM = 3,
    /// Requests and replies.
    H_KIND_CALL = 4,
    /// Group receive.
    H_KIND_GROUP = 5,
    /// Bytes in both directions.
    H_KIND_BYTES = 6,
    /// Publish and subscribe.
    H_KIND_PUBLISH = 7,
    /// For h_wait_any, a listener for byte streams; its seeds are of H_KIND_BYTES.
    H_KIND_BYTE_LISTENER = 256,
} h_kind;

/// The policy for a subscriber that does not keep up, from the costliest for the publisher to the
/// cheapest.
typedef enum {
    /// h_publisher_publish waits for it, within its time limit: for subscribers that are trusted to
    /// keep up.
    H_WHEN_SLOW_WAIT = 1,
    /// It misses the oldest samples that it has yet to be sent.
    H_WHEN_SLOW_DROP_OLDEST = 2,
    /// It misses each sample for which it has no room when that is published.
    H_WHEN_SLOW_DROP_NEWEST = 3,
    /// It is disconnected (H_HUNG_UP) when it would miss a sample. Samples of the pool that it
    /// still has may be overwritten by then.
    H_WHEN_SLOW_SEND_AWAY = 4,
} h_when_slow;

/// The holder's access to an aperture.
typedef enum {
    /// Read.
    H_APERTURE_READ_ONLY = 0,
    /// Read and write.
    H_APERTURE_READ_WRITE = 1,
} h_aperture_access;

/// The severity of a log entry.
typedef enum {
    /// Normal operation: connected, closed, revoked.
    H_LOG_INFO = 0,
    /// A peer did not get a link, or is gone: refused, failed, lost, died, left-out.
    H_LOG_WARNING = 1,
    /// A rule was broken: sent-away, expelled.
    H_LOG_ERROR = 2,
} h_log_level;

/// The launcher that started a rank.
typedef enum {
    /// Without a launcher: the job has one rank.
    H_LAUNCHER_NONE = 0,
    /// `hamlyn run`.
    H_LAUNCHER_RUN = 1,
    /// A launcher that speaks PMIx: Open MPI's, PRRTE's, Slurm's.
    H_LAUNCHER_PMIX = 2,
    /// A launcher that speaks PMI-1: MPICH's.
    H_LAUNCHER_PMI1 = 3,
} h_launcher;

/// An aperture, for its holder or its owner. Any number of threads may use it, without the node.
/// The other side may change its bytes at any time, so they are only ever copied.
typedef struct h_aperture_t h_aperture_t;

/// Accepts byte streams. Any number of threads may accept.
typedef struct h_byte_listener_t h_byte_listener_t;

/// One side of a connection: bytes in both directions, in order. One thread may read while another
/// writes.
typedef struct h_byte_stream_t h_byte_stream_t;

/// Calls a server. Any number of threads may call at once.
typedef struct h_client_t h_client_t;

/// Receives datagrams, one at a time. It is ready when it is made, not ready after each datagram,
/// and ready again after h_datagram_ready; a datagram sent while it is not ready is lost.
typedef struct h_datagram_receiver_t h_datagram_receiver_t;

/// Sends datagrams.
typedef struct h_datagram_sender_t h_datagram_sender_t;

/// Sends parts that members of a group have delegated to it.
typedef struct h_group_helper_t h_group_helper_t;

/// A member of a group.
typedef struct h_group_member_t h_group_member_t;

/// The root of a group: it receives a part from each member in each round.
typedef struct h_group_t h_group_t;

/// The job that this process is a rank of. Any number of threads may use it.
typedef struct h_job_t h_job_t;

/// A sample of the publisher's pool that has yet to be published, to be written in place.
typedef struct h_loan_t h_loan_t;

/// A process's part in Hamlyn: its interface, links, names and waiting. Any number of threads may
/// use it. A process needs one, and may have several.
///
/// After fork() the node is the parent's: the child's calls return H_FORKED and touch nothing, and
/// h_node_free there does nothing at all. The child can make a node of its own.
typedef struct h_node_t h_node_t;

/// The places of a service, for an h_look_up_t to fill in. Valid until that function returns.
typedef struct h_places_t h_places_t;

/// Publishes samples. Any number of threads may publish at once.
typedef struct h_publisher_t h_publisher_t;

/// A client of a named service that connects again when the server is gone or drains. Any number of
/// threads may call at once.
///
/// A request is sent to one server once. If the connection ends before the reply has come, this
/// side cannot know whether the request was carried out, and the call fails, unless the request is
/// idempotent; then it is sent again over the next connection. A request that certainly reached no
/// server is sent over the next connection in any case.
///
/// An outage without a call is not noticed, and costs nothing. The first call in an outage starts a
/// thread, which connects, and ends.
typedef struct h_reconnecting_client_t h_reconnecting_client_t;

/// A reply, to be freed with h_reply_free.
typedef struct h_reply_t h_reply_t;

/// A request, to be replied to once, with h_request_reply, or with h_request_free, which tells the
/// client that no reply will come. It keeps its server alive.
typedef struct h_request_t h_request_t;

/// A sample that has arrived, to be freed with h_sample_free.
typedef struct h_sample_t h_sample_t;

/// Receives requests. Any number of threads may receive and reply at once.
typedef struct h_server_t h_server_t;

/// Receives the records of one sender, in the order of sending.
typedef struct h_stream_receiver_t h_stream_receiver_t;

/// Sends records.
typedef struct h_stream_sender_t h_stream_sender_t;

/// Receives the samples of one publisher.
typedef struct h_subscriber_t h_subscriber_t;

/// Memory into which several senders write; a tag announces each write.
typedef struct h_tagged_receiver_t h_tagged_receiver_t;

/// The sender's end of a tagged remote write.
typedef struct h_tagged_sender_t h_tagged_sender_t;

/// A setting of a node: its name ("ring_bytes") or variable ("HAMLYN_RING_BYTES"), and its value
/// as text ("64K"). docs/settings.md lists them all.
typedef struct {
    /// The setting's name.
    const char *name;
    /// Its value.
    const char *value;
} h_setting_t;

/// A counter.
typedef struct {
    /// Its name, ending in a zero byte. docs/refusals.md explains those of refusals.
    char name[H_COUNTER_NAME_BYTES];
    /// Its value.
    uint64_t value;
} h_counter_t;

/// A message area of a node: contiguous memory for arriving messages. A value, to be copied freely;
/// the name of a removed area is an error.
typedef struct {
    /// Private to the library.
    uint64_t bits;
} h_area_t;

/// A notification queue of a node. A value.
typedef struct {
    /// Private to the library.
    uint64_t bits;
} h_queue_t;

/// Configuration of a slot. A 0 in any field but `area` and `queue` selects the default: the whole
/// area, normal mode, one metadata entry.
typedef struct {
    /// The area for messages.
    h_area_t area;
    /// The queue for notifications.
    h_queue_t queue;
    /// First byte, from the start of the area.
    uint64_t base;
    /// One past the last byte; 0: the end of the area.
    uint64_t bound;
    /// Entries of the metadata area, the most messages on their way at once; 0: one.
    uint32_t metadata_entries;
    /// An h_mode.
    uint32_t mode;
    /// Notifications that may wait in the queue; 0: one for each metadata entry.
    uint32_t credit;
} h_slot_config_t;

/// A slot of a node: base and bound of (part of) an area, a key, metadata entries, a queue. A
/// value.
typedef struct {
    /// Private to the library.
    uint64_t bits;
} h_slot_t;

/// The right to send one message: its destination, key and range of bytes. It consists of these
/// bytes alone: they may be copied, sent in a message, written to a file, and used from any
/// process. Their bearer has the right; the receiver revokes it by changing the key.
typedef struct {
    /// In the format for messages and files: little-endian, the same on every machine.
    uint8_t bytes[H_TICKET_BYTES];
} h_ticket_t;

/// A link of a node. A value; the name of an ended link is not reused for a long time.
typedef struct {
    /// For the library.
    uint64_t bits;
} h_link_t;

/// The identity of the other end of a link, from the kernel; -1 for a value that the kernel does
/// not give, because the other process is in another namespace, or on another host.
typedef struct {
    /// The user.
    int64_t uid;
    /// The group.
    int64_t gid;
    /// The process.
    int64_t pid;
    /// Its node.
    uint64_t node;
    /// Whether it has proved that it is that node: the kernel says which process it is.
    bool is_proved;
    /// For another host: the address that it is connected from, as address:port. Empty: it is on
    /// this host.
    char address[H_ADDRESS_BYTES];
    /// For another host: the first name in its certificate; or the certificate's hash, if it has no
    /// name; or `secret`, for a peer that has this process's secret and no certificate. Otherwise
    /// empty.
    char identity[H_IDENTITY_BYTES];
} h_peer_t;

/// An event that a program may want to know or decide.
typedef struct {
    /// Its kind.
    h_event_kind kind;
    /// The link, if the kind has one.
    h_link_t link;
    /// The request, if the kind has one; for H_EVENT_TICKET_REVOKED the ticket's slot, in the upper
    /// 32 bits, and its metadata index; 0 otherwise.
    uint64_t request;
    /// Queued messages that did not leave.
    uint64_t unsent;
    /// The aperture of the link, if the kind has one.
    uint32_t aperture;
    /// The peer, if the kind has one.
    h_peer_t peer;
    /// Bytes of `text`.
    uint64_t text_length;
    /// A greeting, or a reason; followed by a zero byte.
    uint8_t text[H_EVENT_TEXT_BYTES];
} h_event_t;

/// Names a message that was sent, so that h_is_reusable can be asked about its buffer. A value.
typedef struct {
    /// Private to the library.
    uint64_t bits[3];
} h_handle_t;

/// Part of a gathered message: `length` bytes from `offset` of a send buffer area.
typedef struct {
    /// The send buffer area.
    uint8_t tag;
    /// First byte.
    uint64_t offset;
    /// Number of bytes.
    uint64_t length;
} h_piece_t;

/// A message has arrived.
typedef struct {
    /// The slot that it arrived in, as h_metadata, h_arm and the like take it.
    h_slot_t slot;
    /// The message's metadata entry, or H_INDEX_FAST.
    uint32_t index;
    /// In fast mode the word of the message; else 0.
    uint32_t word;
    /// The link over which its last packet came.
    h_link_t link;
} h_notification_t;

/// A receiver's seed, from which any process that may connect can grow a sender. A secret: its
/// bearer can send. A value; `bytes` may travel in a message or a file, and h_seed_to_text makes a
/// text for a command line.
typedef struct {
    /// Number of bytes in use.
    uint32_t length;
    /// In the format for messages and files.
    uint8_t bytes[H_SEED_BYTES_MAX];
} h_seed_t;

/// Decides whether a process may grow a sender of a receiver: true lets it in. It runs in any
/// thread that polls, must not wait, and must not call the library. `context` is that of the call
/// that set it, and must stay until the receiver is freed or another is set.
typedef bool (*h_admission_t)(void *context, const h_peer_t *peer);

/// A write has arrived.
typedef struct {
    /// The sender's tag.
    uint32_t tag;
    /// The link over which it came.
    h_link_t link;
} h_tag_t;

/// A datagram has arrived.
typedef struct {
    /// Where its bytes begin in the receiver's area.
    size_t offset;
    /// The number of its bytes.
    size_t length;
    /// Whether its sender wants an answer: see h_datagram_reply.
    bool wants_reply;
    /// The link over which it came.
    h_link_t link;
} h_datagram_t;

/// Configuration of a stream's receiver; 0 for the default in brackets.
typedef struct {
    /// Bytes of a buffer: the longest message of combined small records (64 KiB).
    size_t buffer_bytes;
    /// Buffers that wait for messages, 1 to 256 (8).
    uint32_t buffers;
    /// All buffers, those of records that are not yet released included (64).
    uint32_t buffers_max;
    /// Longest record, in bytes (64 MiB).
    size_t record_bytes_max;
    /// Bytes of an aperture for long records (none): a few times the longest. A sender that uses it
    /// writes them straight into this process's memory, and can change them until they are
    /// released: such a record is *volatile*, and only ever copied, by h_stream_read.
    uint64_t aperture_bytes;
} h_stream_config_t;

/// A record that has arrived.
typedef struct {
    /// The number of records that came before it.
    uint64_t number;
    /// Its bytes, in the memory where they arrived. They are stable until it is released. Null if
    /// the record is volatile.
    const void *data;
    /// The number of its bytes.
    size_t length;
    /// Whether its sender can still change it; then copy the bytes that you need with
    /// h_stream_read, check the copy, and use only that. Only with an aperture.
    bool is_volatile;
} h_record_t;

/// Configuration of a server; 0 for the default in brackets.
typedef struct {
    /// Calls that each client may have outstanding (64).
    uint32_t outstanding;
    /// Longest request, in bytes, that is sent at once; a longer one costs another round trip
    /// (4,088, the most).
    uint32_t request_bytes;
    /// Longest request, in bytes (16 MiB).
    uint64_t request_bytes_max;
    /// Bytes of long requests that one user's clients may have here at a time, until each is
    /// replied to; further requests wait at the client, but one is always accepted (64 MiB).
    uint64_t long_bytes_max;
    /// Clients at one time (64).
    uint32_t clients_max;
} h_server_config_t;

/// Configuration of a client; 0 for the default in brackets.
typedef struct {
    /// Calls that may be outstanding, if the server allows that many (64).
    uint32_t outstanding;
    /// Longest reply, in bytes, that is sent at once (4,088, the most).
    uint32_t reply_bytes;
    /// Longest reply, in bytes (16 MiB).
    uint64_t reply_bytes_max;
} h_client_config_t;

/// Names a call of one client. A value.
typedef struct {
    /// Private to the library.
    uint64_t bits;
} h_call_t;

/// The times and number of attempts to connect, and the behaviour of calls meanwhile; 0 for the
/// default in brackets.
typedef struct {
    /// Nanoseconds before the first attempt of an outage (10 ms). A random part of up to its own
    /// length is added to each delay, so that not all clients of a server come back at once.
    uint64_t first_delay_ns;
    /// The longest delay, before the random part, in nanoseconds (5 s). Each delay is twice the
    /// previous one.
    uint64_t delay_max_ns;
    /// The time limit of one attempt, in nanoseconds, also for a name without a server (1 s).
    uint64_t attempt_limit_ns;
    /// Attempts in one outage (without limit).
    uint64_t attempts_max;
    /// Nanoseconds of one outage after which no further attempt begins (without limit).
    uint64_t outage_max_ns;
    /// Not 0: calls fail at once while there is no connection, instead of waiting for the next within
    /// their own time limit (0: they wait).
    uint32_t calls_fail;
} h_reconnect_policy_t;

/// Bytes of the caller.
typedef struct {
    /// Their address.
    const void *data;
    /// Their number.
    size_t length;
} h_bytes_t;

/// A share of a member's part, for a helper to send, once. A value; its bytes may travel in a
/// message or a file.
typedef struct {
    /// In the format for messages and files.
    uint8_t bytes[H_PART_BYTES];
} h_part_t;

/// Configuration of a publisher; 0 for the default in brackets.
typedef struct {
    /// Most bytes of a sample that is copied to each subscriber; longer ones go into the pool
    /// (1,024; at most 2,032).
    size_t short_bytes_max;
    /// Most bytes of a sample in the pool (no pool). Every subscriber can read the whole pool at
    /// any time, also loans that have yet to be published. The pool's memory is taken at once: this
    /// number, up to a multiple of 64, times the sum of subscribers_max times outstanding_max, the
    /// larger of backlog and history, and loans_max. With 8 MiB and the other defaults, 656 MiB.
    size_t sample_bytes_max;
    /// Samples of the pool that may be on loan at once (2).
    uint32_t loans_max;
    /// The newest samples, kept for subscribers that have no room now (16).
    uint32_t backlog;
    /// The newest samples that a new subscriber may ask for (none).
    uint32_t history;
    /// Samples of the pool that a subscriber may have at once, at most 64 (4).
    uint32_t outstanding_max;
    /// Subscribers at one time (16).
    uint32_t subscribers_max;
    /// An h_when_slow, for subscribers that do not ask for a cheaper policy
    /// (H_WHEN_SLOW_DROP_OLDEST).
    uint32_t when_slow;
} h_publish_config_t;

/// The counts of a publisher.
typedef struct {
    /// Samples that were published.
    uint64_t published;
    /// Samples that subscribers did not get because they were slow.
    uint64_t dropped;
    /// Subscribers that were disconnected because they were too slow, or cannot receive the
    /// samples.
    uint64_t sent_away;
    /// Subscribers that were disconnected because they broke the rules.
    uint64_t misbehaved;
    /// Present subscribers.
    size_t subscribers;
} h_publisher_counts_t;

/// A publisher's view of one subscriber.
typedef struct {
    /// Its identity, from the kernel.
    h_peer_t peer;
    /// An h_when_slow: the policy for samples for which it has no room.
    uint32_t when_slow;
    /// Whether it can be sent samples: it has mapped the pool, if there is one.
    bool is_served;
    /// Samples that were sent to it.
    uint64_t sent;
    /// Messages in its own memory that it had not taken, by its last report.
    uint64_t untaken;
    /// Samples of the pool that were announced to it and that it has not released.
    uint32_t outstanding;
    /// Kept samples that it has yet to be sent.
    uint64_t behind;
    /// Samples that it will not get, because it was slow.
    uint64_t dropped;
} h_subscriber_state_t;

/// Configuration of a subscriber, and its requests to the publisher; 0 for the default in brackets.
typedef struct {
    /// Samples in its own memory that wait to be received, some 2 KiB each (64; at most 32,768).
    uint32_t depth;
    /// An h_when_slow: the publisher's policy, or one that is cheaper for the publisher; the
    /// publisher refuses any other (the publisher's).
    uint32_t when_slow;
    /// The number of newest samples published before that come first, at most the publisher's
    /// history; H_HISTORY_NONE: none (the publisher's history).
    uint32_t history;
    /// Samples of the pool that it has at once, at most the publisher's outstanding_max (that
    /// number).
    uint32_t outstanding;
} h_subscribe_config_t;

/// A description of a sample.
typedef struct {
    /// The number of samples published before it, to any subscriber.
    uint64_t number;
    /// The number of samples left out between this subscriber's previous one and this one.
    uint64_t missed;
    /// Its bytes, which are stable until it is freed; null if it is volatile.
    const void *data;
    /// The number of its bytes.
    size_t length;
    /// Whether it lies in the publisher's pool, where the publisher can change it at any time; then
    /// copy the bytes that you need with h_sample_read, check the copy, and use only that.
    bool is_volatile;
} h_sample_info_t;

/// Configuration of a listener, or of a stream that connects; 0 for the default in brackets.
typedef struct {
    /// Bytes that the other side may send before they are read: a power of two from 4 KiB to 16 MiB
    /// (256 KiB).
    uint32_t window_bytes;
    /// Packets that the other side may send before this side processes them, from 8 to 1,024 (256).
    uint32_t packets;
    /// For a listener: connections at one time, accepted or not (256).
    uint32_t connections_max;
} h_byte_config_t;

/// An end point that may have something to receive, for h_wait_any.
typedef struct {
    /// The end point's protocol: an h_kind.
    uint32_t kind;
    /// A pointer to the type that `kind` selects: h_datagram_receiver_t, h_tagged_receiver_t,
    /// h_stream_receiver_t, h_server_t, h_group_t, h_byte_stream_t, h_subscriber_t or
    /// h_byte_listener_t.
    void *end_point;
} h_end_point_t;

/// One log entry: something that happened to a link. The texts are UTF-8, end in a zero byte, and
/// are valid until the function returns; control characters in a peer's texts have been replaced.
typedef struct {
    /// An h_log_level.
    uint32_t level;
    /// The kind of entry, in a word: "connected", "refused", "failed", "closed", "lost", "died",
    /// "sent-away", "expelled", "revoked", "left-out".
    const char *kind;
    /// The peer's user; -1: not known.
    int64_t user;
    /// The peer's process; -1: not known.
    int64_t process;
    /// The service over which the link was made; may be empty.
    const char *service;
    /// The reason; may be empty.
    const char *reason;
    /// The whole entry, as a line.
    const char *text;
} h_log_entry_t;

/// Gets every log entry. It runs in a thread of the library that accepts connections and watches
/// for deaths, and holds no lock: it may call the library, but must not free a node; while it runs,
/// no new connection is accepted. `context` is that of h_set_log.
typedef void (*h_log_t)(void *context, const h_log_entry_t *entry);

/// Adds the places of `service` with h_places_add, in the order in which to try them. No place
/// means that no host offers it yet: a connecting call that waits for names asks again, at first
/// after 50 ms, then less often. `timeout_ns` is the rest of that call's time limit, negative if
/// there is no limit. Returns false if the look-up failed, which ends the attempt; h_places_fail
/// may give the reason first.
///
/// It runs in threads of the library that connect, several at a time; holds no lock; and may wait:
/// a connecting call still returns when its time limit has passed. At most 64 threads connect at a
/// time, those that are still in this function included. It must not free the node. `context` is
/// that of h_set_directory.
typedef bool (*h_look_up_t)(void *context,
                            const char *service,
                            int64_t timeout_ns,
                            h_places_t *places);

/// Called when `context` is not used any more.
typedef void (*h_release_t)(void *context);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/// The reason why this thread's last call that did not return `H_OK` failed: an English sentence in
/// UTF-8 that names the value and the allowed ones. Never null; empty if no call has failed. A
/// successful call does not change it.
///
/// The library owns the text, which is valid until this thread's next call that fails.
const char *h_error_message(void);

/// The name of a status in C, such as "H_TIMED_OUT"; for an unknown number, "(no h_status)". The
/// text is static.
const char *h_status_name(int32_t status);

/// The version of the library, such as "0.1.0". The text is static.
const char *h_version(void);

/// Makes a node. Its settings are those of the environment (HAMLYN_*), overridden by the `count`
/// ones of `settings`, which may be null if `count` is 0. To be freed with h_node_free or h_close.
///
/// In a process that has threads already, the first node takes some 20 ms.
///
/// Errors: H_INVALID, a setting that does not exist or is not allowed; H_SYSTEM. Nothing is left
/// behind.
h_status h_node_new(const h_setting_t *settings, size_t count, h_node_t **node);

/// Frees a node without waiting: messages that are still queued do not leave, and their number is
/// not reported; see h_close. Every peer gets a goodbye, except those with queued messages. End
/// points made from the node go on working until they are freed. Null is allowed.
///
/// No other thread may be in a call with this node, nor make one afterwards. Pointers into its
/// areas are no longer valid.
void h_node_free(h_node_t *node);

/// Closes a node: queued messages leave first, for at most `timeout_ns`; then the node is freed as
/// by h_node_free, whatever the result. `unsent`, which may be null, gets the number of messages
/// that did not leave.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED. `unsent` is written in both cases.
h_status h_close(h_node_t *node, int64_t timeout_ns, size_t *unsent);

/// Waits until every queued message has left, at most `timeout_ns`, and receives meanwhile.
///
/// Errors: H_TIMED_OUT, the messages stay queued; H_FORKED.
h_status h_flush(h_node_t *node, int64_t timeout_ns);

/// The node's name in tickets.
h_status h_node_id(h_node_t *node, uint64_t *id);

/// Starts the progress thread, unless it runs: it makes the node's calls, so that bytes land and
/// queued messages leave while the program does something else.
///
/// Errors: H_SYSTEM, the system gives no thread.
h_status h_start_progress(h_node_t *node);

/// Stops the progress thread and waits for it.
h_status h_stop_progress(h_node_t *node);

/// Tells the node that the program is alive: packets are not discarded for another `watchdog_ms`.
/// Only of use if the setting is not 0 and a progress thread runs. Every call that receives or
/// waits does the same: this is for a program that is busy with something else.
h_status h_reset_watchdog(h_node_t *node);

/// Accepts packets: the state of a new node.
h_status h_enable(h_node_t *node);

/// Takes packets and discards them, counted, until h_enable.
h_status h_disable(h_node_t *node);

/// Every counter of the node. `count` gets their number; if that is more than `capacity`, only that
/// many are written and H_TOO_LONG is returned. `counters` may be null if `capacity` is 0.
h_status h_counters(h_node_t *node, h_counter_t *counters, size_t capacity, size_t *count);

/// The value of one counter, by its name.
///
/// Errors: H_NO_SUCH, no counter has this name.
h_status h_counter(h_node_t *node, const char *name, uint64_t *value);

/// The address to which other hosts connect: the setting `listen`, such as 127.0.0.1:7000, with the
/// port that the system chose if the setting's was 0. Copied to `buffer` and followed by a zero
/// byte, empty if the node does not listen; `length`, which may be null, gets the number of bytes
/// before that.
///
/// Errors: H_TOO_LONG, `length` is written.
h_status h_listens_at(h_node_t *node, char *buffer, size_t capacity, size_t *length);

/// Fallbacks and missing features because of this system or its limits: sentences, one to a line,
/// often empty. Copied to `buffer` and followed by a zero byte; `length`, which may be null, gets
/// the number of bytes before that.
///
/// Errors: H_TOO_LONG, `length` is written.
h_status h_notes(h_node_t *node, char *buffer, size_t capacity, size_t *length);

/// Makes a message area of `bytes` zero bytes, beginning on a page. It lives until h_area_free,
/// or as long as the node.
///
/// Errors: H_INVALID, 0 bytes; H_LIMIT, more than is available, or allowed; H_SYSTEM.
h_status h_area_new(h_node_t *node, size_t bytes, h_area_t *area);

/// Makes a message area over pages at an address of the application's own, which it may protect
/// with mprotect at any time. Messages are deposited through a second view, the library's, so no
/// deposit causes a fault, and a handler of SIGSEGV sees the application's own accesses alone.
///
/// `address` and `bytes` are multiples of the page size, and every page is mapped already, with any
/// protection. The pages are *replaced*, as by mmap with MAP_FIXED, by shared ones: zero, readable
/// and writable; their previous bytes are lost. Like the previous pages, they are the
/// application's: it may protect them, make holes in them (MADV_REMOVE: zeros, in both views) and
/// unmap them. A forked child has nothing there (MADV_DONTFORK). After h_area_free, or when the
/// node has been freed, they stay as they are, with their bytes, until the application unmaps them;
/// only the library's view ends.
///
/// The rules of h_area_data for an area's bytes hold for these, too, at both addresses: no thread
/// writes them while the library may read or write them. h_area_data gives the library's address of
/// them.
///
/// Errors: H_INVALID, 0 bytes, not whole pages, or pages that are not mapped; H_LIMIT, after which
/// the pages are replaced, and there is no area; H_SYSTEM. Unless h_error_message says otherwise,
/// the pages are as they were.
h_status h_area_over(h_node_t *node, void *address, size_t bytes, h_area_t *area);

/// Makes a message area of `bytes` bytes from `offset` on, a multiple of the page size, of a memory
/// file. The application may map the file before or afterwards, at any address, and may protect it
/// with mprotect at any time; see h_area_over. The library makes a view of its own, and does not
/// keep the descriptor.
///
/// The file comes from memfd_create with MFD_ALLOW_SEALING, in ordinary pages, is open for reading
/// and writing, is sealed with F_SEAL_SHRINK (truncating the file would kill the process at the
/// next deposit), and is not sealed against writing. No other process writes these bytes while the
/// area exists: use an aperture for memory that another process may write. Forked children have the
/// application's mappings, too, unless it calls madvise with MADV_DONTFORK.
///
/// Errors: H_INVALID, the descriptor is not such a file, or the bytes are not inside; H_LIMIT;
/// H_SYSTEM. Then nothing was done.
h_status h_area_of_file(h_node_t *node,
                        int descriptor,
                        uint64_t offset,
                        size_t bytes,
                        h_area_t *area);

/// Frees an area's memory. Pointers into it are no longer valid. (For h_area_over and
/// h_area_of_file, the library's view ends; the application's stays.)
///
/// Errors: H_IN_USE, slots name it; H_NO_SUCH. Then nothing was done.
h_status h_area_free(h_node_t *node, h_area_t area);

/// The address of an area's bytes, and their number; `bytes` may be null. The address is valid
/// until the area or the node is freed.
///
/// The bytes change when a message is deposited: in calls of h_recv, h_recv_block, h_send_msg,
/// h_poll and the like, in any thread, the progress thread included. Bytes for which no message can
/// be on its way are stable: those of a one-shot entry after its notification, or those without a
/// ticket, or all while no thread calls. Reading others meanwhile is a data race; h_area_read and
/// h_area_write copy while no message lands.
h_status h_area_data(h_node_t *node, h_area_t area, void **data, size_t *bytes);

/// Copies `length` bytes from `offset` of an area to `to`, while no message lands.
///
/// Errors: H_INVALID, outside the area; H_NO_SUCH.
h_status h_area_read(h_node_t *node, h_area_t area, size_t offset, void *to, size_t length);

/// Copies `length` bytes from `from` to `offset` of an area, while no message lands.
///
/// Errors: H_INVALID, outside the area; H_NO_SUCH.
h_status h_area_write(h_node_t *node,
                      h_area_t area,
                      size_t offset,
                      const void *from,
                      size_t length);

/// Makes a notification queue of `entries` entries.
///
/// Errors: H_INVALID, none or too many entries.
h_status h_queue_new(h_node_t *node, uint32_t entries, h_queue_t *queue);

/// Removes a queue; notifications that wait in it are lost.
///
/// Errors: H_IN_USE, slots notify through it; H_NO_SUCH. Then nothing was done.
h_status h_queue_free(h_node_t *node, h_queue_t queue);

/// Makes a slot with a fresh random key.
///
/// Errors: H_NO_SUCH, the area or queue; H_INVALID, range, entries or mode; H_LIMIT, too many
/// slots, or too few entries left in the queue.
h_status h_slot_new(h_node_t *node, const h_slot_config_t *config, h_slot_t *slot);

/// Removes a slot: packets for it are refused from now on.
h_status h_slot_free(h_node_t *node, h_slot_t slot);

/// The slot's index, as tickets and events give it.
uint32_t h_slot_index(h_slot_t slot);

/// Gives a slot a new key: all existing tickets are worthless at once, also for packets on their
/// way. h_arm_limits and h_close_entry change the keys of paranoid entries.
h_status h_revoke(h_node_t *node, h_slot_t slot);

/// Arms a metadata entry of a normal slot for the next message, and resets its packet count. If the
/// sender of an unfinished message may still be sending, h_revoke the key first.
///
/// Errors: H_STATE, the slot is paranoid; H_NO_SUCH.
h_status h_arm(h_node_t *node, h_slot_t slot, uint32_t index);

/// Arms a metadata entry of a paranoid slot: a new key, and the bytes from `low` up to but not
/// including `high`, from the slot's base. Tickets made before are worthless.
///
/// Errors: H_INVALID, limits outside the slot; H_STATE, the slot is normal; H_NO_SUCH.
h_status h_arm_limits(h_node_t *node, h_slot_t slot, uint32_t index, uint64_t low, uint64_t high);

/// Revokes one sender's right: the paranoid entry accepts nothing until it is armed again.
h_status h_close_entry(h_node_t *node, h_slot_t slot, uint32_t index);

/// The user metadata of the message that an entry received last: up to H_METADATA_MAX bytes, copied
/// to `buffer`; `length`, which may be null, gets their number.
///
/// Errors: H_TOO_LONG, `length` is written; H_NO_SUCH.
h_status h_metadata(h_node_t *node,
                    h_slot_t slot,
                    uint32_t index,
                    void *buffer,
                    size_t capacity,
                    size_t *length);

/// Makes a send buffer area of `bytes` zero bytes, from which h_post_send gathers messages; a node
/// has up to 8. `tag` gets its name.
///
/// Errors: H_LIMIT; H_INVALID, 0 bytes or no tag left; H_SYSTEM.
h_status h_send_buffer_new(h_node_t *node, size_t bytes, uint8_t *tag);

/// Makes a send buffer area of pages at an address of the application's own, which it may protect
/// at any time; the pages are replaced, and afterwards stay, as h_area_over says.
///
/// Errors: as for h_area_over, and H_INVALID, no tag left.
h_status h_send_buffer_over(h_node_t *node, void *address, size_t bytes, uint8_t *tag);

/// Makes a send buffer area of bytes of a memory file, possibly those of a message area; see
/// h_area_of_file.
///
/// Errors: as for h_area_of_file, and H_INVALID, no tag left. Then nothing was done.
h_status h_send_buffer_of_file(h_node_t *node,
                               int descriptor,
                               uint64_t offset,
                               size_t bytes,
                               uint8_t *tag);

/// Frees a send buffer area.
///
/// Errors: H_INVALID, a queued message needs it, or it does not exist; then nothing was done.
h_status h_send_buffer_free(h_node_t *node, uint8_t tag);

/// Copies `length` bytes from `from` to `offset` of a send buffer area. A queued message that still
/// needs these bytes is sent with the new ones if its packet leaves afterwards; see h_is_reusable.
///
/// Errors: H_INVALID, outside the area, or no such area.
h_status h_send_buffer_write(h_node_t *node,
                             uint8_t tag,
                             size_t offset,
                             const void *from,
                             size_t length);

/// The ticket that sends one message to entry `index` of a slot.
///
/// Errors: H_NO_SUCH; H_STATE, the entry of a paranoid slot is not armed.
h_status h_ticket(h_node_t *node, h_slot_t slot, uint32_t index, h_ticket_t *ticket);

/// The ticket that sends single packets to a slot in fast mode, with h_send_fast.
///
/// Errors: H_NO_SUCH; H_STATE, the slot is paranoid.
h_status h_fast_ticket(h_node_t *node, h_slot_t slot, h_ticket_t *ticket);

/// Checks that bytes are a ticket's, and gives the number of data bytes that it allows. Only the
/// receiver knows whether it is valid, when a packet arrives. `capacity` may be null.
///
/// Errors: H_INVALID, not a ticket.
h_status h_ticket_capacity(const h_ticket_t *ticket, uint64_t *capacity);

/// The node that a ticket leads to, as its h_node_id gives it.
h_status h_ticket_destination(const h_ticket_t *ticket, uint64_t *id);

/// The same right for the bytes from `offset` on, counted from the ticket's first; `at` may be
/// `ticket`.
///
/// Errors: H_INVALID, not a ticket, or outside it.
h_status h_ticket_at(const h_ticket_t *ticket, uint64_t offset, h_ticket_t *at);

/// The same right without a notification: the data arrives silently. `silent` may be `ticket`.
///
/// Errors: H_INVALID, not a ticket.
h_status h_ticket_silent(const h_ticket_t *ticket, h_ticket_t *silent);

/// Divides a ticket's bytes and its share of the packet counter evenly among `count` parts, up to
/// 2^20, for helpers that together send one message: it is announced when all have sent their
/// parts, each once. The ticket itself must no longer be used.
///
/// Errors: H_INVALID, not a ticket, or one that cannot be divided like this.
h_status h_ticket_split(const h_ticket_t *ticket, h_ticket_t *parts, size_t count);

/// Offers a service: every permitted process is accepted, also while the program makes no calls,
/// and gets `greeting`, often a ticket. `access` is an h_access; `gid` is used for H_ACCESS_GROUP
/// only. A node may offer several.
///
/// Errors: H_INVALID, not a name of a service; H_IN_USE; H_REFUSED; H_TOO_LONG; H_SYSTEM. No name
/// was taken.
h_status h_serve(h_node_t *node,
                 const char *name,
                 uint32_t access,
                 uint32_t gid,
                 const void *greeting,
                 size_t greeting_length);

/// Offers a service for which the program decides on each connection: every request to connect is
/// an event, to be answered with h_accept or h_refuse. Otherwise as h_serve.
h_status h_serve_asking(h_node_t *node, const char *name, uint32_t access, uint32_t gid);

/// No longer offers a service; links made through it stay.
///
/// Errors: H_NO_SUCH, it was not offered.
h_status h_stop_serving(h_node_t *node, const char *name);

/// Accepts a request to connect; the other side gets `greeting`. An event of kind H_EVENT_CONNECTED
/// then reports the link.
///
/// Errors: H_NO_SUCH, the request was answered or withdrawn; H_TOO_LONG; H_LIMIT, the request was
/// refused because there is no room.
h_status h_accept(h_node_t *node, uint64_t request, const void *greeting, size_t greeting_length);

/// Refuses a request to connect; the other side gets `reason`.
///
/// Errors: H_NO_SUCH, the request was answered or withdrawn.
h_status h_refuse(h_node_t *node, uint64_t request, const char *reason);

/// Connects to the service "[user@]name", waiting at most `timeout_ns` in all: for a server of the
/// name, too, unless the node's setting wait_for_names is off. `greeting` reaches the server before
/// it decides; h_greeting gets its answer.
///
/// Errors: H_INVALID, not a name of a service; H_NOT_FOUND; H_REFUSED; H_VERSION; H_LIMIT;
/// H_TIMED_OUT; H_CLOSED; H_MISBEHAVED; H_TOO_LONG; H_SYSTEM; for another host H_NO_HOST,
/// H_UNREACHABLE, H_UNTRUSTED, H_SECRET. Nothing is left of the attempt.
h_status h_connect(h_node_t *node,
                   const char *name,
                   const void *greeting,
                   size_t greeting_length,
                   int64_t timeout_ns,
                   h_link_t *link);

/// The other side's greeting when the link was made, often a ticket; also for the links that ended
/// last. Up to H_GREETING_BYTES_MAX bytes are copied to `buffer`; `length`, which may be null, gets
/// their number.
///
/// Errors: H_TOO_LONG, `length` is written; H_NO_SUCH.
h_status h_greeting(h_node_t *node, h_link_t link, void *buffer, size_t capacity, size_t *length);

/// The identity of the other end of a link; also for the links that ended last.
///
/// Errors: H_NO_SUCH.
h_status h_peer(h_node_t *node, h_link_t link, h_peer_t *peer);

/// The path that a link takes, and the reason: a text, copied to `buffer` and followed by a zero
/// byte; `length`, which may be null, gets the number of bytes before that.
///
/// Errors: H_TOO_LONG, `length` is written; H_NO_SUCH.
h_status h_explain(h_node_t *node, h_link_t link, char *buffer, size_t capacity, size_t *length);

/// Ends one link. `unsent`, which may be null, gets the number of queued messages that have not
/// left and are lost.
///
/// Errors: H_NO_SUCH.
h_status h_disconnect(h_node_t *node, h_link_t link, size_t *unsent);

/// The next event of the node, waiting for it at most `timeout_ns`; 0: not at all.
///
/// Errors: H_NOTHING, no event waits and the time limit was 0; H_TIMED_OUT.
h_status h_next_event(h_node_t *node, int64_t timeout_ns, h_event_t *event);

/// A descriptor for epoll, poll and an event loop. It becomes readable when something may have come
/// after h_prepare_to_wait allowed waiting, also if another thread has received it. The node owns
/// the descriptor: do not close it, nor read from it. For one event loop.
///
/// Errors: H_SYSTEM, the system gives no descriptor; H_FORKED.
h_status h_fd(h_node_t *node, int32_t *fd);

/// Call this before waiting on h_fd, after finding every queue, end point and h_next_event empty.
/// `may_wait` becomes true if nothing has come since, and any arrival makes the descriptor
/// readable; or false if something may have come since the last call, in any thread: look at all of
/// them again. So it is false the first time.
///
/// Errors: as h_fd.
h_status h_prepare_to_wait(h_node_t *node, bool *may_wait);

/// Sends one message: `length` bytes of `data` land at the ticket's first byte, and
/// `metadata_length` bytes of `metadata`, up to H_METADATA_MAX, in the metadata entry. Both have
/// been copied when the call returns. Waits for room at most `timeout_ns`, and receives meanwhile,
/// so that two nodes that send to each other never deadlock. `handle` may be null.
///
/// Messages leave in order; packets are counted, not sequenced, so that a metadata entry has one
/// message on its way at a time, unless each is a single packet.
///
/// Errors: H_UNREACHABLE, no link leads to the ticket's node; H_TOO_LONG, for the ticket; H_CLOSED,
/// the other side closed during the call; H_TIMED_OUT, nothing has left; H_INCOMPLETE, part of a
/// long message has left, and the receiver has to arm the entry again; H_INVALID; H_FORKED. No
/// error reports an invalid ticket: refusals reveal nothing.
h_status h_send_msg(h_node_t *node,
                    const h_ticket_t *ticket,
                    const void *data,
                    size_t length,
                    const void *metadata,
                    size_t metadata_length,
                    int64_t timeout_ns,
                    h_handle_t *handle);

/// h_send_msg without waiting: H_FULL if the link cannot take the message now, and H_TOO_LONG if it
/// could never take it in one step. A message of up to 256 bytes is queued while the work queue has
/// room.
h_status h_try_send_msg(h_node_t *node,
                        const h_ticket_t *ticket,
                        const void *data,
                        size_t length,
                        const void *metadata,
                        size_t metadata_length,
                        h_handle_t *handle);

/// Sends one packet in fast mode: `word` arrives in the notification itself. `ticket` is from
/// h_fast_ticket of the receiver. Waits for room at most `timeout_ns`; with 0 it does not wait, and
/// H_FULL means that there is no room. `handle` may be null.
///
/// Errors: as h_send_msg; H_INVALID, too long for one packet, or not a ticket of fast mode.
h_status h_send_fast(h_node_t *node,
                     const h_ticket_t *ticket,
                     const void *data,
                     size_t length,
                     uint32_t word,
                     int64_t timeout_ns,
                     h_handle_t *handle);

/// Queues a message gathered from up to 16 pieces of send buffer areas. It leaves in this and later
/// calls, or in h_flush; do not change the pieces before h_is_reusable. `handle` may be null.
///
/// Errors: H_FULL, the work queue; H_INVALID, a piece outside its area; otherwise as h_send_msg.
h_status h_post_send(h_node_t *node,
                     const h_ticket_t *ticket,
                     const h_piece_t *pieces,
                     size_t count,
                     const void *metadata,
                     size_t metadata_length,
                     h_handle_t *handle);

/// Whether all bytes of a message have been copied out, so that its buffer may be used again. It
/// does not report the message's arrival.
h_status h_is_reusable(h_node_t *node, const h_handle_t *handle, bool *reusable);

/// Takes the next notification of a queue, if a message has arrived; if not, first receives from
/// the links.
///
/// Errors: H_NOTHING; H_NO_SUCH; H_FORKED.
h_status h_recv(h_node_t *node, h_queue_t queue, h_notification_t *notification);

/// Waits for the next notification of a queue, at most `timeout_ns`: spins, yields and sleeps as
/// the settings say. Any number of threads may wait, for the same or for different queues.
///
/// Errors: H_TIMED_OUT; H_NO_SUCH; H_FORKED; H_SYSTEM.
h_status h_recv_block(h_node_t *node,
                      h_queue_t queue,
                      int64_t timeout_ns,
                      h_notification_t *notification);

/// One turn: receives a bounded number of packets from each link, and gives queued packets to links
/// that have room. `taken`, which may be null, gets the number of received packets, refused ones
/// included; 0 if another thread is taking a turn.
h_status h_poll(h_node_t *node, size_t *taken);

/// Reads a seed from any source. Its receiver decides whether it is genuine, when a sender is
/// grown.
///
/// Errors: H_SEED, cut off, changed on the way, of another version, or not a seed at all.
h_status h_seed_from_bytes(const void *data, size_t length, h_seed_t *seed);

/// Reads a seed from the text of h_seed_to_text.
///
/// Errors: H_SEED.
h_status h_seed_from_text(const char *data, h_seed_t *seed);

/// The same seed for bearers on other hosts, which find the receiver's host at `at`, a text such as
/// "a.example:7000"; its node has to listen there (the setting listen). `made` may be `seed`.
///
/// Errors: H_SEED, it is not a seed; H_INVALID; H_TOO_LONG.
h_status h_seed_at_host(const h_seed_t *seed, const char *at, h_seed_t *made);

/// A seed as text of hexadecimal digits, followed by a zero byte; H_SEED_TEXT_BYTES are always
/// enough. `length`, which may be null, gets the number of bytes before that.
///
/// Errors: H_SEED, it is not a seed; H_TOO_LONG, `length` is written.
h_status h_seed_to_text(const h_seed_t *seed, char *buffer, size_t capacity, size_t *length);

/// The protocol of a seed's receiver: an h_kind.
///
/// Errors: H_SEED, it is not a seed.
h_status h_seed_kind(const h_seed_t *seed, uint32_t *kind);

/// Makes a receiver with an area of `bytes` zero bytes, into which up to `senders_max` senders (0:
/// 16) write, each of which may have `tags` tags (0: 256) in the queue. To be freed with
/// h_tagged_receiver_close or h_tagged_receiver_free.
///
/// Errors: H_LIMIT, a number is not allowed, or there is no memory or queue of that size.
h_status h_tagged_receiver_new(h_node_t *node,
                               size_t bytes,
                               uint32_t tags,
                               uint32_t senders_max,
                               h_tagged_receiver_t **receiver);

/// A seed from which a sender can be grown, by any process that may
/// connect; each call makes another.
///
/// Errors: H_SYSTEM, the service for seeds cannot be offered.
h_status h_tagged_receiver_seed(h_tagged_receiver_t *receiver, h_seed_t *seed);

/// Lets senders find this receiver by name. `access` is
/// an h_access; `gid` is used for H_ACCESS_GROUP only.
///
/// Errors: H_INVALID, not a name of a service; H_IN_USE; H_REFUSED; H_SYSTEM. No name was
/// taken.
h_status h_tagged_receiver_serve(h_tagged_receiver_t *receiver,
                                 const char *name,
                                 uint32_t access,
                                 uint32_t gid);

/// Ends the offers of this receiver: its names are free at once for
/// another, its seeds are worthless, and connected peers stay so.
h_status h_tagged_receiver_stop_serving(h_tagged_receiver_t *receiver);

/// Asks `admit` about each process that wants to grow a sender; null: all
/// permitted ones are let in again. See h_admission_t.
h_status h_tagged_receiver_set_admission(h_tagged_receiver_t *receiver,
                                         h_admission_t admit,
                                         void *context);

/// Offers this receiver, which is of the job's node, to the other ranks.
/// They wait until then. End points of one kind have different names; freeing an end point
/// frees its names.
///
/// Errors: H_INVALID, the name is invalid, or the end point is not of h_job_node; H_IN_USE,
/// this rank offers another of the same kind under it.
h_status h_tagged_receiver_offer(h_tagged_receiver_t *receiver, h_job_t *job, const char *name);

/// Receives the next tag, in the order of arrival, waiting at most `timeout_ns`. Its data is in the
/// area by then.
///
/// Errors: H_NOTHING, no tag waits and the time limit was 0; H_TIMED_OUT; H_FORKED; H_SYSTEM.
h_status h_tagged_get_tag(h_tagged_receiver_t *receiver, int64_t timeout_ns, h_tag_t *tag);

/// The next write with this tag; other tags that come meanwhile are kept for later calls, in their
/// order. Otherwise as h_tagged_get_tag.
///
/// Errors: also H_MISBEHAVED, a sender sent more tags than its credit and was disconnected.
h_status h_tagged_get_specific_tag(h_tagged_receiver_t *receiver,
                                   uint32_t wanted,
                                   int64_t timeout_ns,
                                   h_tag_t *tag);

/// Copies `length` bytes from `offset` of the area to `to`, while nothing arrives.
///
/// Errors: H_INVALID, outside the area.
h_status h_tagged_read(h_tagged_receiver_t *receiver, size_t offset, void *to, size_t length);

/// The address of the area's bytes, and their number; `bytes` may be null. The address is valid
/// until the receiver is freed. The bytes change when a write arrives: in calls with the node or
/// its end points, in any thread. Bytes that the senders write again only after a message from this
/// program are stable.
h_status h_tagged_data(h_tagged_receiver_t *receiver, const void **data, size_t *bytes);

/// The number of senders that have a connection now.
h_status h_tagged_receiver_senders(h_tagged_receiver_t *receiver, size_t *count);

/// Closes a receiver: every queued message of the node leaves first, for at most
/// `timeout_ns`. Then frees it, whatever the result.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED.
h_status h_tagged_receiver_close(h_tagged_receiver_t *receiver, int64_t timeout_ns);

/// Frees a receiver without waiting. Null is allowed.
/// Its senders get a goodbye; its seeds and names are worthless; its area is freed.
void h_tagged_receiver_free(h_tagged_receiver_t *receiver);

/// Grows a sender from a seed, waiting at most `timeout_ns` for the receiver's
/// answer. To be freed with h_tagged_sender_close or
/// h_tagged_sender_free.
///
/// Errors: H_SEED, not a seed, or one of another protocol; H_REFUSED, the seed is old or
/// forged, or the
/// receiver's owner does not admit this process; H_LIMIT, the receiver has as many as it may,
/// or its process has, or this one; H_NOT_FOUND, its process is gone; H_CLOSED, it closed
/// meanwhile; H_TIMED_OUT; H_INVALID, an argument or a setting; H_VERSION; H_MISBEHAVED;
/// H_SYSTEM; for another host H_NO_HOST, H_UNREACHABLE, H_UNTRUSTED, H_SECRET. Nothing is
/// left of the attempt.
h_status h_tagged_sender_grow(h_node_t *node,
                              const h_seed_t *seed,
                              int64_t timeout_ns,
                              h_tagged_sender_t **sender);

/// Grows a sender of the service "[user@]name". Waits within the time limit for a
/// name without a server, or whose server's process is ending, unless the setting
/// wait_for_names is off; otherwise as h_tagged_sender_grow.
///
/// Errors: as h_tagged_sender_grow; H_NOT_FOUND, the name has no server, or there is no
/// such user; H_INVALID, not a name of a service; H_UNREACHABLE, for another host.
h_status h_tagged_sender_connect(h_node_t *node,
                                 const char *name,
                                 int64_t timeout_ns,
                                 h_tagged_sender_t **sender);

/// Grows a sender of the receiver that a rank offers under `name`. Waits at most
/// `timeout_ns` for the offer, and while too many ranks of other hosts ask it at once; otherwise
/// as h_tagged_sender_grow.
///
/// Errors: H_INVALID, there is no such rank, or the name is invalid; H_TIMED_OUT, the rank
/// did not offer it; H_UNREACHABLE; H_LIMIT; H_CLOSED. Nothing is left of the attempt.
h_status h_tagged_sender_grow_from(h_job_t *job,
                                   uint32_t rank,
                                   const char *name,
                                   int64_t timeout_ns,
                                   h_tagged_sender_t **sender);

/// Writes `length` bytes of `data` to the receiver's area at `offset`, and `tag` to its queue.
/// Waits at most `timeout_ns` for room, and for the receiver to take earlier tags.
///
/// Errors, nothing was sent: H_TOO_LONG, for one packet, see h_tagged_bytes_max; H_INVALID, outside
/// the area; H_FULL, the time limit was 0; H_TIMED_OUT; H_CLOSED, H_DIED, the receiver is gone;
/// H_MISBEHAVED.
h_status h_tagged_send(h_tagged_sender_t *sender,
                       uint64_t offset,
                       const void *data,
                       size_t length,
                       uint32_t tag,
                       int64_t timeout_ns);

/// Most bytes of one write, and the bytes of the receiver's area; either pointer may be null.
h_status h_tagged_bytes_max(h_tagged_sender_t *sender, size_t *bytes_max, uint64_t *area_bytes);

/// The identity of the other end, from the kernel.
h_status h_tagged_sender_peer(h_tagged_sender_t *sender, h_peer_t *peer);

/// The path that the link takes, and the reason: a text, copied to `buffer` and followed by
/// a zero byte; `length`, which may be null, gets the number of bytes before that.
///
/// Errors: H_TOO_LONG, `length` is written.
h_status h_tagged_sender_explain(h_tagged_sender_t *sender,
                                 char *buffer,
                                 size_t capacity,
                                 size_t *length);

/// Closes a sender: every sent message leaves first, for at most
/// `timeout_ns`. Then frees it, whatever the result.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED.
h_status h_tagged_sender_close(h_tagged_sender_t *sender, int64_t timeout_ns);

/// Frees a sender without waiting. Null is allowed.
/// All of its writes are with the receiver already.
void h_tagged_sender_free(h_tagged_sender_t *sender);

/// Makes a receiver with an area of `bytes` zero bytes, which is ready. To be freed with
/// h_datagram_receiver_close or h_datagram_receiver_free.
///
/// Errors: H_LIMIT, no memory of that size.
h_status h_datagram_receiver_new(h_node_t *node, size_t bytes, h_datagram_receiver_t **receiver);

/// A seed from which a sender can be grown, by any process that may
/// connect; each call makes another.
///
/// Errors: H_SYSTEM, the service for seeds cannot be offered.
h_status h_datagram_receiver_seed(h_datagram_receiver_t *receiver, h_seed_t *seed);

/// Lets senders find this receiver by name. `access` is
/// an h_access; `gid` is used for H_ACCESS_GROUP only.
///
/// Errors: H_INVALID, not a name of a service; H_IN_USE; H_REFUSED; H_SYSTEM. No name was
/// taken.
h_status h_datagram_receiver_serve(h_datagram_receiver_t *receiver,
                                   const char *name,
                                   uint32_t access,
                                   uint32_t gid);

/// Ends the offers of this receiver: its names are free at once for
/// another, its seeds are worthless, and connected peers stay so.
h_status h_datagram_receiver_stop_serving(h_datagram_receiver_t *receiver);

/// Asks `admit` about each process that wants to grow a sender; null: all
/// permitted ones are let in again. See h_admission_t.
h_status h_datagram_receiver_set_admission(h_datagram_receiver_t *receiver,
                                           h_admission_t admit,
                                           void *context);

/// Offers this receiver, which is of the job's node, to the other ranks.
/// They wait until then. End points of one kind have different names; freeing an end point
/// frees its names.
///
/// Errors: H_INVALID, the name is invalid, or the end point is not of h_job_node; H_IN_USE,
/// this rank offers another of the same kind under it.
h_status h_datagram_receiver_offer(h_datagram_receiver_t *receiver, h_job_t *job, const char *name);

/// Receives the next datagram, waiting at most `timeout_ns`. Afterwards, until h_datagram_ready,
/// the receiver is not ready and the datagram's bytes are stable.
///
/// Errors: H_NOTHING, no datagram waits and the time limit was 0; H_TIMED_OUT; H_MISBEHAVED, a
/// sender broke the rules and was disconnected; nothing was received, and the receiver is ready;
/// H_FORKED; H_SYSTEM.
h_status h_datagram_receive(h_datagram_receiver_t *receiver,
                            int64_t timeout_ns,
                            h_datagram_t *datagram);

/// Copies the bytes of the last received datagram to `buffer`; `length`, which may be null, gets
/// their number.
///
/// Errors: H_TOO_LONG, `length` is written; H_STATE, no datagram was received; H_INVALID, the
/// receiver was made ready since.
h_status h_datagram_read(h_datagram_receiver_t *receiver,
                         void *buffer,
                         size_t capacity,
                         size_t *length);

/// The address of the last received datagram's bytes, and their number; `length` may be null. They
/// are stable until h_datagram_ready, or until the receiver is freed.
///
/// Errors: as h_datagram_read.
h_status h_datagram_data(h_datagram_receiver_t *receiver, const void **data, size_t *length);

/// Answers the last received datagram, with the ticket that came with it, over the same link. Waits
/// at most `timeout_ns` for room. Does not report whether the other side was ready.
///
/// Errors: H_STATE, no datagram was received, or it wants no answer; H_TOO_LONG; H_CLOSED, H_DIED,
/// its sender is gone; H_FULL, H_TIMED_OUT, nothing was sent; H_CUT_OFF.
h_status h_datagram_reply(h_datagram_receiver_t *receiver,
                          const void *data,
                          size_t length,
                          int64_t timeout_ns);

/// Makes the receiver ready: the bytes of the previous datagram may change from now on. Issued
/// tickets are valid again.
h_status h_datagram_ready(h_datagram_receiver_t *receiver);

/// h_datagram_ready with a new key: every issued ticket is worthless from now on, and senders need
/// a new ticket, or grow again. A datagram that was not received is lost.
h_status h_datagram_ready_anew(h_datagram_receiver_t *receiver);

/// A ticket to send one datagram to this receiver whenever it is ready; send it along with a
/// datagram, for the answer.
h_status h_datagram_reply_ticket(h_datagram_receiver_t *receiver, h_ticket_t *ticket);

/// Closes a receiver: every queued message of the node leaves first, for at most
/// `timeout_ns`. Then frees it, whatever the result.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED.
h_status h_datagram_receiver_close(h_datagram_receiver_t *receiver, int64_t timeout_ns);

/// Frees a receiver without waiting. Null is allowed.
/// Its senders get a goodbye; its seeds and names are worthless; its area is freed.
void h_datagram_receiver_free(h_datagram_receiver_t *receiver);

/// Grows a sender from a seed, waiting at most `timeout_ns` for the receiver's
/// answer. To be freed with h_datagram_sender_close or
/// h_datagram_sender_free.
///
/// Errors: H_SEED, not a seed, or one of another protocol; H_REFUSED, the seed is old or
/// forged, or the
/// receiver's owner does not admit this process; H_LIMIT, the receiver has as many as it may,
/// or its process has, or this one; H_NOT_FOUND, its process is gone; H_CLOSED, it closed
/// meanwhile; H_TIMED_OUT; H_INVALID, an argument or a setting; H_VERSION; H_MISBEHAVED;
/// H_SYSTEM; for another host H_NO_HOST, H_UNREACHABLE, H_UNTRUSTED, H_SECRET. Nothing is
/// left of the attempt.
h_status h_datagram_sender_grow(h_node_t *node,
                                const h_seed_t *seed,
                                int64_t timeout_ns,
                                h_datagram_sender_t **sender);

/// Grows a sender of the service "[user@]name". Waits within the time limit for a
/// name without a server, or whose server's process is ending, unless the setting
/// wait_for_names is off; otherwise as h_datagram_sender_grow.
///
/// Errors: as h_datagram_sender_grow; H_NOT_FOUND, the name has no server, or there is no
/// such user; H_INVALID, not a name of a service; H_UNREACHABLE, for another host.
h_status h_datagram_sender_connect(h_node_t *node,
                                   const char *name,
                                   int64_t timeout_ns,
                                   h_datagram_sender_t **sender);

/// Grows a sender of the receiver that a rank offers under `name`. Waits at most
/// `timeout_ns` for the offer, and while too many ranks of other hosts ask it at once; otherwise
/// as h_datagram_sender_grow.
///
/// Errors: H_INVALID, there is no such rank, or the name is invalid; H_TIMED_OUT, the rank
/// did not offer it; H_UNREACHABLE; H_LIMIT; H_CLOSED. Nothing is left of the attempt.
h_status h_datagram_sender_grow_from(h_job_t *job,
                                     uint32_t rank,
                                     const char *name,
                                     int64_t timeout_ns,
                                     h_datagram_sender_t **sender);

/// Sends `length` bytes of `data` to the receiver's area at `offset`, and with them a ticket for
/// the answer, from h_datagram_reply_ticket of a receiver of the same node, or null. Waits at most
/// `timeout_ns` for room. Does not report whether the receiver was ready.
///
/// Errors, nothing was sent: H_TOO_LONG; H_INVALID, outside the area, or a ticket of another node;
/// H_FULL, the time limit was 0; H_TIMED_OUT; H_CLOSED, H_DIED, the receiver is gone. H_CUT_OFF:
/// part was sent, and the rest leaves first in the next call.
h_status h_datagram_send(h_datagram_sender_t *sender,
                         uint64_t offset,
                         const void *data,
                         size_t length,
                         const h_ticket_t *reply,
                         int64_t timeout_ns);

/// The size of the receiver's area, in bytes.
h_status h_datagram_capacity(h_datagram_sender_t *sender, uint64_t *bytes);

/// The identity of the other end, from the kernel.
h_status h_datagram_sender_peer(h_datagram_sender_t *sender, h_peer_t *peer);

/// The path that the link takes, and the reason: a text, copied to `buffer` and followed by
/// a zero byte; `length`, which may be null, gets the number of bytes before that.
///
/// Errors: H_TOO_LONG, `length` is written.
h_status h_datagram_sender_explain(h_datagram_sender_t *sender,
                                   char *buffer,
                                   size_t capacity,
                                   size_t *length);

/// Closes a sender: every sent message leaves first, for at most
/// `timeout_ns`. Then frees it, whatever the result.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED.
h_status h_datagram_sender_close(h_datagram_sender_t *sender, int64_t timeout_ns);

/// Frees a sender without waiting. Null is allowed.
/// Queued datagrams may be lost.
void h_datagram_sender_free(h_datagram_sender_t *sender);

/// Makes a receiver; `config` may be null. To be freed with h_stream_receiver_close or
/// h_stream_receiver_free.
///
/// Errors: H_LIMIT, a number is not allowed, or there is no memory for it.
h_status h_stream_receiver_new(h_node_t *node,
                               const h_stream_config_t *config,
                               h_stream_receiver_t **receiver);

/// A seed from which the sender can be grown, by any process that may
/// connect; each call makes another.
///
/// Errors: H_SYSTEM, the service for seeds cannot be offered.
h_status h_stream_receiver_seed(h_stream_receiver_t *receiver, h_seed_t *seed);

/// Lets the sender find this receiver by name. `access` is
/// an h_access; `gid` is used for H_ACCESS_GROUP only.
///
/// Errors: H_INVALID, not a name of a service; H_IN_USE; H_REFUSED; H_SYSTEM. No name was
/// taken.
h_status h_stream_receiver_serve(h_stream_receiver_t *receiver,
                                 const char *name,
                                 uint32_t access,
                                 uint32_t gid);

/// Ends the offers of this receiver: its names are free at once for
/// another, its seeds are worthless, and connected peers stay so.
h_status h_stream_receiver_stop_serving(h_stream_receiver_t *receiver);

/// Asks `admit` about each process that wants to grow the sender; null: all
/// permitted ones are let in again. See h_admission_t.
h_status h_stream_receiver_set_admission(h_stream_receiver_t *receiver,
                                         h_admission_t admit,
                                         void *context);

/// Offers this receiver, which is of the job's node, to the other ranks.
/// They wait until then. End points of one kind have different names; freeing an end point
/// frees its names.
///
/// Errors: H_INVALID, the name is invalid, or the end point is not of h_job_node; H_IN_USE,
/// this rank offers another of the same kind under it.
h_status h_stream_receiver_offer(h_stream_receiver_t *receiver, h_job_t *job, const char *name);

/// Receives the next record, in the order of sending, waiting at most `timeout_ns`. Its bytes stay
/// where they arrived, and are stable until it is released.
///
/// Errors: H_NOTHING, no record waits and the time limit was 0; H_TIMED_OUT; H_CLOSED, the sender
/// has sent everything, and all of it was received; H_DIED, H_HUNG_UP, the sender ended without
/// that, and all arrived records were received; H_MISBEHAVED; H_FORKED; H_SYSTEM.
h_status h_stream_receive(h_stream_receiver_t *receiver, int64_t timeout_ns, h_record_t *record);

/// Copies `length` bytes from `offset` of the record with this number to `to`.
///
/// Errors: H_NO_SUCH, it was released, or has not been received; H_INVALID, outside the record;
/// H_CLOSED, it is volatile, and its memory is no longer there.
h_status h_stream_read(h_stream_receiver_t *receiver,
                       uint64_t number,
                       size_t offset,
                       void *to,
                       size_t length);

/// Frees all records up to and including the one with this number; their buffers are used again,
/// and a sender that waits for one goes on.
///
/// Errors: H_NO_SUCH, it was released, or has not been received.
h_status h_stream_release(h_stream_receiver_t *receiver, uint64_t number);

/// The identity of the sender, from the kernel.
///
/// Errors: H_NOTHING, there is no sender yet.
h_status h_stream_receiver_peer(h_stream_receiver_t *receiver, h_peer_t *peer);

/// The path that the stream takes, and the reason: a text, copied to `buffer` and followed by a
/// zero byte; `length`, which may be null, gets the number of bytes before that.
///
/// Errors: H_TOO_LONG, `length` is written.
h_status h_stream_receiver_explain(h_stream_receiver_t *receiver,
                                   char *buffer,
                                   size_t capacity,
                                   size_t *length);

/// Closes a receiver: every queued message of the node leaves first, for at most
/// `timeout_ns`. Then frees it, whatever the result.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED.
h_status h_stream_receiver_close(h_stream_receiver_t *receiver, int64_t timeout_ns);

/// Frees a receiver without waiting. Null is allowed.
/// Unreleased records are gone, and pointers to them no longer valid; the sender is notified.
void h_stream_receiver_free(h_stream_receiver_t *receiver);

/// Grows the sender from a seed, waiting at most `timeout_ns` for the receiver's
/// answer. To be freed with h_stream_sender_close or
/// h_stream_sender_free.
///
/// Errors: H_SEED, not a seed, or one of another protocol; H_REFUSED, the seed is old or
/// forged, or the
/// receiver's owner does not admit this process; H_LIMIT, the receiver has as many as it may,
/// or its process has, or this one; H_NOT_FOUND, its process is gone; H_CLOSED, it closed
/// meanwhile; H_TIMED_OUT; H_INVALID, an argument or a setting; H_VERSION; H_MISBEHAVED;
/// H_SYSTEM; for another host H_NO_HOST, H_UNREACHABLE, H_UNTRUSTED, H_SECRET. Nothing is
/// left of the attempt.
h_status h_stream_sender_grow(h_node_t *node,
                              const h_seed_t *seed,
                              int64_t timeout_ns,
                              h_stream_sender_t **sender);

/// Grows the sender of the service "[user@]name". Waits within the time limit for a
/// name without a server, or whose server's process is ending, unless the setting
/// wait_for_names is off; otherwise as h_stream_sender_grow.
///
/// Errors: as h_stream_sender_grow; H_NOT_FOUND, the name has no server, or there is no
/// such user; H_INVALID, not a name of a service; H_UNREACHABLE, for another host.
h_status h_stream_sender_connect(h_node_t *node,
                                 const char *name,
                                 int64_t timeout_ns,
                                 h_stream_sender_t **sender);

/// Grows the sender of the receiver that a rank offers under `name`. Waits at most
/// `timeout_ns` for the offer, and while too many ranks of other hosts ask it at once; otherwise
/// as h_stream_sender_grow.
///
/// Errors: H_INVALID, there is no such rank, or the name is invalid; H_TIMED_OUT, the rank
/// did not offer it; H_UNREACHABLE; H_LIMIT; H_CLOSED. Nothing is left of the attempt.
h_status h_stream_sender_grow_from(h_job_t *job,
                                   uint32_t rank,
                                   const char *name,
                                   int64_t timeout_ns,
                                   h_stream_sender_t **sender);

/// Grows a sender from a seed, waiting at most `timeout_ns` for the receiver's
/// answer. To be freed with h_stream_sender_close or
/// h_stream_sender_free.
/// It writes long records straight into the receiver's memory, if the receiver has an aperture;
/// if the aperture cannot be mapped, they go through the link, and h_stream_sender_explain says
/// so.
///
/// Errors: H_SEED, not a seed, or one of another protocol; H_REFUSED, the seed is old or
/// forged, or the
/// receiver's owner does not admit this process; H_LIMIT, the receiver has as many as it may,
/// or its process has, or this one; H_NOT_FOUND, its process is gone; H_CLOSED, it closed
/// meanwhile; H_TIMED_OUT; H_INVALID, an argument or a setting; H_VERSION; H_MISBEHAVED;
/// H_SYSTEM; for another host H_NO_HOST, H_UNREACHABLE, H_UNTRUSTED, H_SECRET. Nothing is
/// left of the attempt.
h_status h_stream_sender_grow_with_aperture(h_node_t *node,
                                            const h_seed_t *seed,
                                            int64_t timeout_ns,
                                            h_stream_sender_t **sender);

/// Grows a sender of the service "[user@]name". Waits within the time limit for a
/// name without a server, or whose server's process is ending, unless the setting
/// wait_for_names is off; otherwise as h_stream_sender_grow_with_aperture.
///
/// Errors: as h_stream_sender_grow_with_aperture; H_NOT_FOUND, the name has no server, or there is no
/// such user; H_INVALID, not a name of a service; H_UNREACHABLE, for another host.
h_status h_stream_sender_connect_with_aperture(h_node_t *node,
                                               const char *name,
                                               int64_t timeout_ns,
                                               h_stream_sender_t **sender);

/// Grows a sender of the receiver that a rank offers under `name`. Waits at most
/// `timeout_ns` for the offer, and while too many ranks of other hosts ask it at once; otherwise
/// as h_stream_sender_grow_with_aperture.
///
/// Errors: H_INVALID, there is no such rank, or the name is invalid; H_TIMED_OUT, the rank
/// did not offer it; H_UNREACHABLE; H_LIMIT; H_CLOSED. Nothing is left of the attempt.
h_status h_stream_sender_grow_from_with_aperture(h_job_t *job,
                                                 uint32_t rank,
                                                 const char *name,
                                                 int64_t timeout_ns,
                                                 h_stream_sender_t **sender);

/// Sends a record of `length` bytes, waiting at most `timeout_ns` for room. A small one leaves with
/// others, at the latest with h_stream_flush. A long one leaves at once; if the time limit passes
/// when a part of it has left, the status is H_OK, too: the record was taken, its rest leaves only
/// in later calls with this sender, and only h_stream_flush, or h_stream_sender_close, confirms it.
///
/// Errors, nothing of this record was taken: H_TOO_LONG, see h_stream_bytes_max; H_FULL, the time
/// limit was 0; H_TIMED_OUT; H_CLOSED, H_DIED, the receiver is gone, which a call notices when a
/// message leaves; H_MISBEHAVED; H_STATE, a record is on loan (h_stream_loan).
h_status h_stream_send(h_stream_sender_t *sender,
                       const void *data,
                       size_t length,
                       int64_t timeout_ns);

/// Lends a record of `length` bytes, to be written in place and sent with h_stream_loan_send: this
/// saves a copy of a small one. `data` gets the address of its bytes; the caller may write them
/// until it is sent or freed, and must not touch them afterwards. At first they are zero, or those
/// of earlier records of this sender. Waits at most `timeout_ns` for room if small records have to
/// leave first.
///
/// A sender has one record on loan at a time, and until that is sent, or freed with
/// h_stream_loan_free, it sends and flushes nothing else (H_STATE). Freeing the sender frees the
/// loan, too.
///
/// Errors, nothing is on loan: H_TOO_LONG, see h_stream_bytes_max; H_FULL, the time limit was 0;
/// H_TIMED_OUT; H_CLOSED, H_DIED, H_HUNG_UP, the receiver is gone; H_MISBEHAVED; H_STATE, a record
/// is on loan already, and stays so, or the sender was grown with an aperture. Part of the small
/// records that had to leave first may have left; the rest leaves in later calls.
h_status h_stream_loan(h_stream_sender_t *sender, size_t length, int64_t timeout_ns, void **data);

/// Sends the first `length` bytes of the record that is on loan, as h_stream_send does. The loan
/// ends, and the pointer to its bytes is no longer valid. On an error it is on loan as before, but
/// shortened to `length`.
///
/// Errors: as h_stream_send; H_INVALID, `length` is more than the record has; H_STATE, no record is
/// on loan.
h_status h_stream_loan_send(h_stream_sender_t *sender, size_t length, int64_t timeout_ns);

/// Frees the record that is on loan, if any, without sending any of it. Null is allowed.
void h_stream_loan_free(h_stream_sender_t *sender);

/// Sends the small records that wait for others, waiting at most `timeout_ns` for room. After H_OK
/// every record is on its way, and arrives even if this process ends.
///
/// Errors: as h_stream_send; the rest stays for a later call.
h_status h_stream_flush(h_stream_sender_t *sender, int64_t timeout_ns);

/// The longest record, in bytes.
h_status h_stream_bytes_max(h_stream_sender_t *sender, size_t *bytes_max);

/// The identity of the other end, from the kernel.
h_status h_stream_sender_peer(h_stream_sender_t *sender, h_peer_t *peer);

/// The path that the link takes, and the reason: a text, copied to `buffer` and followed by
/// a zero byte; `length`, which may be null, gets the number of bytes before that.
///
/// Errors: H_TOO_LONG, `length` is written.
h_status h_stream_sender_explain(h_stream_sender_t *sender,
                                 char *buffer,
                                 size_t capacity,
                                 size_t *length);

/// Sends the rest and tells the receiver that this was all, waiting at most `timeout_ns`. Then
/// frees the sender, whatever the result; to try for longer, call h_stream_flush first.
///
/// Errors: H_TIMED_OUT, records were left, and the receiver knows that some are missing; H_CLOSED,
/// H_DIED, the receiver is gone; H_FORKED.
h_status h_stream_sender_close(h_stream_sender_t *sender, int64_t timeout_ns);

/// Frees a sender, as after a failure: sends as much as it can without waiting, and tells the
/// receiver with H_HUNG_UP that records may be missing. If all went well, call
/// h_stream_sender_close instead. Null is allowed.
void h_stream_sender_free(h_stream_sender_t *sender);

/// Makes a server; `config` may be null. To be freed with h_server_close or h_server_free.
///
/// Errors: H_LIMIT, a number is not allowed, or there is no memory for it.
h_status h_server_new(h_node_t *node, const h_server_config_t *config, h_server_t **server);

/// A seed from which a client can be grown, by any process that may
/// connect; each call makes another.
///
/// Errors: H_SYSTEM, the service for seeds cannot be offered.
h_status h_server_seed(h_server_t *server, h_seed_t *seed);

/// Lets clients find this server by name. `access` is
/// an h_access; `gid` is used for H_ACCESS_GROUP only.
///
/// Errors: H_INVALID, not a name of a service; H_IN_USE; H_REFUSED; H_SYSTEM. No name was
/// taken.
h_status h_server_serve(h_server_t *server, const char *name, uint32_t access, uint32_t gid);

/// Ends the offers of this server: its names are free at once for
/// another, its seeds are worthless, and connected peers stay so.
h_status h_server_stop_serving(h_server_t *server);

/// Asks `admit` about each process that wants to grow a client; null: all
/// permitted ones are let in again. See h_admission_t.
h_status h_server_set_admission(h_server_t *server, h_admission_t admit, void *context);

/// Offers this server, which is of the job's node, to the other ranks.
/// They wait until then. End points of one kind have different names; freeing an end point
/// frees its names.
///
/// Errors: H_INVALID, the name is invalid, or the end point is not of h_job_node; H_IN_USE,
/// this rank offers another of the same kind under it.
h_status h_server_offer(h_server_t *server, h_job_t *job, const char *name);

/// Receives the next request, waiting at most `timeout_ns`. Any number of threads may wait.
///
/// Errors: H_NOTHING, no request waits and the time limit was 0; H_TIMED_OUT; H_CLOSED, the server
/// drains, and no more requests will come; H_FORKED; H_SYSTEM.
h_status h_server_receive(h_server_t *server, int64_t timeout_ns, h_request_t **request);

/// The bytes of a request, and their number; `length` may be null. They are stable until the
/// request is replied to or freed.
h_status h_request_data(const h_request_t *request, const void **data, size_t *length);

/// The identity of the caller, from the kernel.
///
/// Errors: H_NO_SUCH, the caller left long ago.
h_status h_request_peer(const h_request_t *request, h_peer_t *peer);

/// Replies to a request, waiting at most `timeout_ns` for room, and, if the reply is long, for the
/// client to make room for it and for the bytes to leave. Frees the request, whatever the result.
///
/// With H_FOREVER a reply of at most the client's `reply_bytes` does not wait: it is queued, and
/// leaves in a later call. A longer one waits until the client takes it, possibly forever; and the
/// client chooses `reply_bytes`. With any other limit both wait at most that long. An error
/// concerns that client alone: the server can go on serving the others.
///
/// Errors, the client learns that no reply will come: H_TIMED_OUT; H_TOO_LONG, for the client;
/// H_CLOSED, H_DIED, the client is gone. H_INVALID, null; then the request is not freed.
h_status h_request_reply(h_request_t *request, const void *data, size_t length, int64_t timeout_ns);

/// Answers that a request has failed, waiting at most `timeout_ns` for room: the client gets
/// H_APPLICATION, with this code, which the application defines, and this text. Frees the request,
/// whatever the result.
///
/// Errors, the client learns that no reply will come: H_TIMED_OUT; H_TOO_LONG, a text of more than
/// 1,024 bytes, or than the client's `reply_bytes` less 8; H_CLOSED, H_DIED, the client is gone.
/// H_INVALID, null, or not UTF-8; then the request is not freed.
h_status h_request_fail(h_request_t *request,
                        uint32_t code,
                        const char *reason,
                        int64_t timeout_ns);

/// The time for which the caller goes on waiting, in nanoseconds, if it called
/// h_client_call_within; H_FOREVER if not.
h_status h_request_time_left(const h_request_t *request, int64_t *left_ns);

/// Whether no caller waits for the reply any more: it has given up, its client is gone, or its time
/// limit has passed. Takes a turn. A reply is still allowed, and is dropped at the client.
///
/// Errors: H_FORKED.
h_status h_request_is_cancelled(const h_request_t *request, bool *is_cancelled);

/// Frees a request without a reply; the client learns that no reply will come. Null is allowed.
void h_request_free(h_request_t *request);

/// The number of connected clients, and of clients that were disconnected because they broke the
/// rules; either pointer may be null.
h_status h_server_clients(h_server_t *server, size_t *connected, uint64_t *misbehaved);

/// Takes no new requests, waits at most `timeout_ns` until the accepted ones have been received and
/// replied to, and closes all connections. `unanswered`, which may be null, gets the number of
/// requests without a reply: 0 if all were answered.
///
/// The server's names are free for another server from the beginning, and new calls get H_DRAINING.
/// Receiving goes on, in other threads, and fails with H_CLOSED when no request is left. Afterwards
/// no client is connected; free the server.
///
/// Errors: H_FORKED; H_SYSTEM. The server then takes nothing new, and its connections are as they
/// were.
h_status h_server_drain(h_server_t *server, int64_t timeout_ns, size_t *unanswered);

/// Begins to drain, and does not wait: for a program of one thread, such as an event loop. Go on
/// receiving until h_server_receive returns H_CLOSED, reply to the requests still held, and then
/// call h_server_drain, which has nothing left to wait for. A client that has announced a long
/// request can delay that: a program that must end sets a limit of its own, and then calls
/// h_server_drain with a limit of 0.
///
/// Errors: H_FORKED.
h_status h_server_begin_drain(h_server_t *server);

/// Closes a server: every queued message of the node leaves first, for at most
/// `timeout_ns`. Then frees it, whatever the result.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED.
h_status h_server_close(h_server_t *server, int64_t timeout_ns);

/// Frees a server without waiting. Null is allowed.
/// Its names are free at once. Its clients get a goodbye once the received requests are freed,
/// too.
void h_server_free(h_server_t *server);

/// Grows a client from a seed, waiting at most `timeout_ns` for the server's
/// answer. To be freed with h_client_close or
/// h_client_free.
/// `config` may be null.
///
/// Errors: H_SEED, not a seed, or one of another protocol; H_REFUSED, the seed is old or
/// forged, or the
/// server's owner does not admit this process; H_LIMIT, the server has as many as it may,
/// or its process has, or this one; H_NOT_FOUND, its process is gone; H_CLOSED, it closed
/// meanwhile; H_TIMED_OUT; H_INVALID, an argument or a setting; H_VERSION; H_MISBEHAVED;
/// H_SYSTEM; for another host H_NO_HOST, H_UNREACHABLE, H_UNTRUSTED, H_SECRET. Nothing is
/// left of the attempt.
h_status h_client_grow(h_node_t *node,
                       const h_seed_t *seed,
                       const h_client_config_t *config,
                       int64_t timeout_ns,
                       h_client_t **client);

/// Grows a client of the service "[user@]name". Waits within the time limit for a
/// name without a server, or whose server's process is ending, unless the setting
/// wait_for_names is off; otherwise as h_client_grow.
///
/// Errors: as h_client_grow; H_NOT_FOUND, the name has no server, or there is no
/// such user; H_INVALID, not a name of a service; H_UNREACHABLE, for another host.
h_status h_client_connect(h_node_t *node,
                          const char *name,
                          const h_client_config_t *config,
                          int64_t timeout_ns,
                          h_client_t **client);

/// Grows a client of the server that a rank offers under `name`. Waits at most
/// `timeout_ns` for the offer, and while too many ranks of other hosts ask it at once; otherwise
/// as h_client_grow.
///
/// Errors: H_INVALID, there is no such rank, or the name is invalid; H_TIMED_OUT, the rank
/// did not offer it; H_UNREACHABLE; H_LIMIT; H_CLOSED. Nothing is left of the attempt.
h_status h_client_grow_from(h_job_t *job,
                            uint32_t rank,
                            const char *name,
                            const h_client_config_t *config,
                            int64_t timeout_ns,
                            h_client_t **client);

/// The code of this thread's last H_APPLICATION, which the server's program passed to
/// h_request_fail; 0 before the first.
uint32_t h_error_code(void);

/// Sends a request and waits for the reply, at most `timeout_ns` in all. The reply is copied to
/// `reply`; `reply_length`, which may be null, gets the number of its bytes. If the reply's length
/// is unknown, use h_client_start and h_client_finish.
///
/// Errors: H_TIMED_OUT, the server may still be at work, and its reply will be dropped; H_REFUSED,
/// the server will not reply; H_DRAINING, the server is about to close and has not taken the
/// request, which may be sent to another; H_CLOSED, H_DIED, the server is gone, and may or may not
/// have carried out the request; H_MISBEHAVED; H_TOO_LONG, the request, for the server, or the
/// reply, for `capacity`: then `reply_length` is written, and the reply is dropped; H_LIMIT, no
/// memory for a long reply; H_APPLICATION, the server's program has answered with an error of its
/// own.
h_status h_client_call(h_client_t *client,
                       const void *request,
                       size_t length,
                       int64_t timeout_ns,
                       void *reply,
                       size_t capacity,
                       size_t *reply_length);

/// As h_client_call, and sends the server the limit, which is not H_FOREVER: h_request_time_left
/// tells the server's program when the caller gives up. Costs 8 bytes of the request.
///
/// Errors: as h_client_call; H_INVALID, a negative limit.
h_status h_client_call_within(h_client_t *client,
                              const void *request,
                              size_t length,
                              int64_t limit_ns,
                              void *reply,
                              size_t capacity,
                              size_t *reply_length);

/// Sends a request, waiting at most `timeout_ns` for a free call and, if it is long, for the server
/// to make room for it. h_client_finish gets the reply.
///
/// Errors, there is no call: as h_client_call; H_TIMED_OUT also if all calls that may be
/// outstanding wait for replies, forgotten ones included; then nothing was sent, and the text says
/// so.
h_status h_client_start(h_client_t *client,
                        const void *request,
                        size_t length,
                        int64_t timeout_ns,
                        h_call_t *call);

/// Waits for the reply of a call, at most `timeout_ns`; to be freed with h_reply_free. The call
/// ends, unless the status is H_NOTHING or H_TIMED_OUT: then finish it later, or forget it.
///
/// Errors: H_NOTHING, no reply has come and the time limit was 0; H_TIMED_OUT; H_NO_SUCH; otherwise
/// as h_client_call.
h_status h_client_finish(h_client_t *client, h_call_t call, int64_t timeout_ns, h_reply_t **reply);

/// Forgets a call: its reply will be dropped. The call does not exist from now on (H_NO_SUCH), not
/// even for a thread that waits for it; its place among the calls that may be outstanding is free
/// when the server has answered. For a call that does not exist, does nothing.
h_status h_client_forget(h_client_t *client, h_call_t call);

/// The bytes of a reply, and their number; `length` may be null. They are stable until it is freed.
h_status h_reply_data(const h_reply_t *reply, const void **data, size_t *length);

/// Frees a reply. Null is allowed.
void h_reply_free(h_reply_t *reply);

/// The number of calls that may be outstanding.
h_status h_client_outstanding_max(h_client_t *client, size_t *count);

/// The identity of the other end, from the kernel.
h_status h_client_peer(h_client_t *client, h_peer_t *peer);

/// The path that the link takes, and the reason: a text, copied to `buffer` and followed by
/// a zero byte; `length`, which may be null, gets the number of bytes before that.
///
/// Errors: H_TOO_LONG, `length` is written.
h_status h_client_explain(h_client_t *client, char *buffer, size_t capacity, size_t *length);

/// Closes a client: every sent message leaves first, for at most
/// `timeout_ns`. Then frees it, whatever the result.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED.
h_status h_client_close(h_client_t *client, int64_t timeout_ns);

/// Frees a client without waiting. Null is allowed.
/// Ends its outstanding calls.
void h_client_free(h_client_t *client);

/// Connects to the server of "[user@]name", as h_client_connect; from then on the policy holds.
/// `config` and `policy` may be null. To be freed with h_reconnecting_client_free.
///
/// Errors: as h_client_connect. Nothing is left of the attempt.
h_status h_reconnecting_client_connect(h_node_t *node,
                                       const char *name,
                                       const h_client_config_t *config,
                                       const h_reconnect_policy_t *policy,
                                       int64_t timeout_ns,
                                       h_reconnecting_client_t **client);

/// Sends a request and waits for the reply, through outages, at most `limit_ns` in all; the server
/// gets the rest of that limit (h_request_time_left), unless it is H_FOREVER. `is_idempotent`, not
/// 0: carrying the request out twice has the effect of once, so that it is sent again if its reply
/// was lost. The reply is to be freed with h_reply_free.
///
/// Errors: H_UNREACHABLE, there was no connection, within the limit or the policy, and the request
/// was not sent; H_TIMED_OUT, the server may still be at work, and its reply will be dropped;
/// H_CLOSED, H_DIED, H_MISBEHAVED, the connection ended, and the server may or may not have carried
/// out the request; H_REFUSED, the server will not reply; H_APPLICATION; H_TOO_LONG; H_LIMIT;
/// H_FORKED.
h_status h_reconnecting_client_call(h_reconnecting_client_t *client,
                                    const void *request,
                                    size_t length,
                                    int64_t limit_ns,
                                    uint32_t is_idempotent,
                                    h_reply_t **reply);

/// The state of a client's connection, as its last call has found or left it. `number`, which may
/// be null, gets the connection's number, or the last one's: 1 for the first, one more for each
/// after it, so that a later look shows that there was an outage.
h_status h_reconnecting_client_state(h_reconnecting_client_t *client,
                                     h_connection_state *state,
                                     uint64_t *number);

/// The reason why there is no connection, or why the last attempt failed: a text, copied to
/// `buffer` and followed by a zero byte, and empty if there is a connection; `length`, which may be
/// null, gets the number of bytes before that.
///
/// Errors: H_TOO_LONG, `length` is written.
h_status h_reconnecting_client_why(h_reconnecting_client_t *client,
                                   char *buffer,
                                   size_t capacity,
                                   size_t *length);

/// Ends the connection, or the attempt to make one, and frees the client. No other thread may be in
/// a call with it. Null is allowed.
void h_reconnecting_client_free(h_reconnecting_client_t *client);

/// Makes a group with places for `members` members. In each round each member sends a part of up to
/// `part_bytes` bytes, and receives up to `scatter_bytes` (0: as many as part_bytes), for which it
/// must have room. To be freed with h_group_close or h_group_free.
///
/// Errors: H_LIMIT, a number is not allowed, or there is no memory for it.
h_status h_group_new(h_node_t *node,
                     uint32_t members,
                     size_t part_bytes,
                     size_t scatter_bytes,
                     h_group_t **group);

/// A seed from which a member or helper can be grown, by any process that may
/// connect; each call makes another.
///
/// Errors: H_SYSTEM, the service for seeds cannot be offered.
h_status h_group_seed(h_group_t *group, h_seed_t *seed);

/// Lets members and helpers find this group by name. `access` is
/// an h_access; `gid` is used for H_ACCESS_GROUP only.
///
/// Errors: H_INVALID, not a name of a service; H_IN_USE; H_REFUSED; H_SYSTEM. No name was
/// taken.
h_status h_group_serve(h_group_t *group, const char *name, uint32_t access, uint32_t gid);

/// Ends the offers of this group: its names are free at once for
/// another, its seeds are worthless, and connected peers stay so.
h_status h_group_stop_serving(h_group_t *group);

/// Asks `admit` about each process that wants to grow a member or helper; null: all
/// permitted ones are let in again. See h_admission_t.
h_status h_group_set_admission(h_group_t *group, h_admission_t admit, void *context);

/// Offers this group, which is of the job's node, to the other ranks.
/// They wait until then. End points of one kind have different names; freeing an end point
/// frees its names.
///
/// Errors: H_INVALID, the name is invalid, or the end point is not of h_job_node; H_IN_USE,
/// this rank offers another of the same kind under it.
h_status h_group_offer(h_group_t *group, h_job_t *job, const char *name);

/// A seed from which the member in one place can be grown, and its replacement, if it is lost.
///
/// Errors: H_INVALID, there is no such place.
h_status h_group_seed_of(h_group_t *group, uint32_t member, h_seed_t *seed);

/// Waits at most `timeout_ns` until the part of every member has arrived. The parts are stable
/// until h_group_next_round.
///
/// Errors, arrived parts stay, and the call may be repeated: H_TIMED_OUT; H_DIED, H_CLOSED, a
/// member ended before its part had arrived: the text and h_group_lost name it; H_STATE, members
/// are at a barrier, or the like; H_FORKED; H_SYSTEM.
h_status h_group_gather(h_group_t *group, int64_t timeout_ns);

/// h_group_gather for the parts of any `wanted` members. A lost member is no error while that many
/// can still be reached.
h_status h_group_wait_for(h_group_t *group, uint32_t wanted, int64_t timeout_ns);

/// The member that made the last call with this group fail.
///
/// Errors: H_NOTHING, it did not fail because of a member.
h_status h_group_lost(h_group_t *group, uint32_t *member);

/// After H_TIMED_OUT of the last call that had this group to itself: the members that it was not
/// finished with, those that have yet to join included. (A call that timed out because another
/// thread was in a call says so, and leaves this list as it was.) `count` gets their number; if
/// that is more than `capacity`, only that many are written and H_TOO_LONG is returned. `members`
/// may be null if `capacity` is 0.
///
/// Errors: H_NOTHING, no member was left out; H_TOO_LONG.
h_status h_group_missing(h_group_t *group, uint32_t *members, size_t capacity, size_t *count);

/// The address of one member's part, and the number of its bytes; `length` may be null. It begins
/// at a multiple of 64 bytes, and is stable until h_group_next_round.
///
/// Errors: H_NOTHING, it has not arrived.
h_status h_group_part(h_group_t *group, uint32_t member, const void **data, size_t *length);

/// Ends the round: the bytes of its parts may change from now on, and the members may send those of
/// the next. A part that comes later is dropped.
h_status h_group_next_round(h_group_t *group);

/// Sends each member its own bytes: `count` of `parts`, one for each place. Waits at most
/// `timeout_ns` for each member to have received the previous scatter, and for members that have
/// yet to join.
///
/// Errors: as h_group_gather, a lost member after all others have been served; H_INVALID, `count`
/// is not the number of places; H_TOO_LONG; nothing was sent then.
h_status h_group_scatter(h_group_t *group,
                         const h_bytes_t *parts,
                         size_t count,
                         int64_t timeout_ns);

/// h_group_scatter to `count` members alone, whose numbers are `members`: `parts[i]` is for
/// `members[i]`. After H_TIMED_OUT, for those that h_group_missing names.
///
/// Errors: as h_group_scatter; H_INVALID, there is no such member, or one is named twice.
h_status h_group_scatter_to(h_group_t *group,
                            const uint32_t *members,
                            const h_bytes_t *parts,
                            size_t count,
                            int64_t timeout_ns);

/// Waits at most `timeout_ns` until the rest of all messages that a time limit has cut off has
/// left; otherwise it leaves in the group's next calls. The rest for a member that has ended is
/// dropped, and is no error here: h_group_gather and h_group_scatter report the member.
///
/// Errors: H_CUT_OFF, some has not left, and the call may be repeated; H_TIMED_OUT, another thread
/// is in a call with the group; H_FORKED; H_SYSTEM.
h_status h_group_flush(h_group_t *group, int64_t timeout_ns);

/// Sends the same bytes to each member; otherwise as h_group_scatter.
h_status h_group_broadcast(h_group_t *group, const void *data, size_t length, int64_t timeout_ns);

/// Waits at most `timeout_ns` until every member has come to its barrier, and lets all of them
/// continue; the round is over.
///
/// Errors: as h_group_gather; h_group_release then lets the waiting members continue.
h_status h_group_barrier(h_group_t *group, int64_t timeout_ns);

/// Lets the members that have come to their barrier continue; the round is over. Members that come
/// later continue at once.
h_status h_group_release(h_group_t *group, int64_t timeout_ns);

/// The number of places, of members and helpers with a connection now, and the number of the round,
/// from 1 on; each pointer may be null.
h_status h_group_members(h_group_t *group,
                         uint32_t *places,
                         uint32_t *joined,
                         size_t *helpers,
                         uint64_t *round);

/// The number of parts that make this group ready for h_wait_any; all of them unless set.
h_status h_group_set_wanted(h_group_t *group, uint32_t wanted);

/// Closes a group: every queued message of the node leaves first, for at most
/// `timeout_ns`. Then frees it, whatever the result.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED.
h_status h_group_close(h_group_t *group, int64_t timeout_ns);

/// Frees a group without waiting. Null is allowed.
/// Its members and helpers get a goodbye; pointers to parts are no longer valid.
void h_group_free(h_group_t *group);

/// Grows a member from a seed, waiting at most `timeout_ns` for the root's
/// answer. To be freed with h_group_member_close or
/// h_group_member_free.
/// The root may send it up to `receive_bytes` bytes at once.
///
/// Errors: H_SEED, not a seed, or one of another protocol; H_REFUSED, the seed is old or
/// forged, or the
/// root's owner does not admit this process; H_LIMIT, the root has as many as it may,
/// or its process has, or this one; H_NOT_FOUND, its process is gone; H_CLOSED, it closed
/// meanwhile; H_TIMED_OUT; H_INVALID, an argument or a setting; H_VERSION; H_MISBEHAVED;
/// H_SYSTEM; for another host H_NO_HOST, H_UNREACHABLE, H_UNTRUSTED, H_SECRET. Nothing is
/// left of the attempt.
h_status h_group_member_grow(h_node_t *node,
                             const h_seed_t *seed,
                             size_t receive_bytes,
                             int64_t timeout_ns,
                             h_group_member_t **member);

/// Grows a member of the service "[user@]name". Waits within the time limit for a
/// name without a server, or whose server's process is ending, unless the setting
/// wait_for_names is off; otherwise as h_group_member_grow.
///
/// Errors: as h_group_member_grow; H_NOT_FOUND, the name has no server, or there is no
/// such user; H_INVALID, not a name of a service; H_UNREACHABLE, for another host.
h_status h_group_member_connect(h_node_t *node,
                                const char *name,
                                size_t receive_bytes,
                                int64_t timeout_ns,
                                h_group_member_t **member);

/// Grows a member of the root that a rank offers under `name`. Waits at most
/// `timeout_ns` for the offer, and while too many ranks of other hosts ask it at once; otherwise
/// as h_group_member_grow.
///
/// Errors: H_INVALID, there is no such rank, or the name is invalid; H_TIMED_OUT, the rank
/// did not offer it; H_UNREACHABLE; H_LIMIT; H_CLOSED. Nothing is left of the attempt.
h_status h_group_member_grow_from(h_job_t *job,
                                  uint32_t rank,
                                  const char *name,
                                  size_t receive_bytes,
                                  int64_t timeout_ns,
                                  h_group_member_t **member);

/// A member's place in the group, from 0 on, the number of places, and the most bytes of a part;
/// each pointer may be null.
h_status h_group_member_place(h_group_member_t *member,
                              uint32_t *number,
                              uint32_t *places,
                              size_t *part_bytes);

/// Sends this member's part of the round, waiting at most `timeout_ns` for the round to begin and
/// for room.
///
/// Errors, nothing was sent: H_TIMED_OUT; H_TOO_LONG; H_CLOSED, H_DIED, the root is gone; H_STATE,
/// the root is in another operation. H_CUT_OFF: the rest leaves first in the next call.
h_status h_group_member_send(h_group_member_t *member,
                             const void *data,
                             size_t length,
                             int64_t timeout_ns);

/// Receives the root's next scatter or broadcast, waiting at most `timeout_ns`; copied to `buffer`,
/// which should hold as many bytes as the member was grown to receive. `length`, which may be null,
/// gets the number of bytes.
///
/// Errors: H_TIMED_OUT; H_CLOSED, H_DIED, the root is gone; H_STATE, the root is in another
/// operation; H_TOO_LONG, `buffer` is too small: `length` is written, and the bytes are lost.
h_status h_group_member_receive(h_group_member_t *member,
                                int64_t timeout_ns,
                                void *buffer,
                                size_t capacity,
                                size_t *length);

/// Comes to the barrier: waits at most `timeout_ns` until every member has, and the root lets all
/// continue.
///
/// Errors: H_TIMED_OUT, then repeat the call; H_CLOSED, H_DIED, the root is gone; H_STATE, the root
/// is in another operation.
h_status h_group_member_barrier(h_group_member_t *member, int64_t timeout_ns);

/// Delegates this member's part of the round, `length` bytes, to `count` helpers, up to 65,536, in
/// nearly equal pieces, in their order. Each helper sends its piece with h_group_helper_send or
/// h_group_member_send_part, and the part has arrived when all pieces have. Waits at most
/// `timeout_ns` for the round to begin. The helpers trust one another, and this member is
/// responsible for them.
///
/// Errors: as h_group_member_send; H_INVALID, `count` is not allowed.
h_status h_group_member_delegate(h_group_member_t *member,
                                 size_t length,
                                 int64_t timeout_ns,
                                 h_part_t *parts,
                                 size_t count);

/// The exact number of bytes that a helper has to send for a part.
///
/// Errors: H_INVALID, not a part.
h_status h_part_length(const h_part_t *part, size_t *length);

/// Sends a part that another member of the group, or this one, has delegated.
///
/// Errors: as h_group_member_send; H_INVALID, not a part.
h_status h_group_member_send_part(h_group_member_t *member,
                                  const h_part_t *part,
                                  const void *data,
                                  size_t length,
                                  int64_t timeout_ns);

/// The identity of the other end, from the kernel.
h_status h_group_member_peer(h_group_member_t *member, h_peer_t *peer);

/// The path that the link takes, and the reason: a text, copied to `buffer` and followed by
/// a zero byte; `length`, which may be null, gets the number of bytes before that.
///
/// Errors: H_TOO_LONG, `length` is written.
h_status h_group_member_explain(h_group_member_t *member,
                                char *buffer,
                                size_t capacity,
                                size_t *length);

/// Closes a member: every sent message leaves first, for at most
/// `timeout_ns`. Then frees it, whatever the result.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED.
h_status h_group_member_close(h_group_member_t *member, int64_t timeout_ns);

/// Frees a member without waiting. Null is allowed.
/// Queued messages may be lost.
void h_group_member_free(h_group_member_t *member);

/// Grows a helper from a seed, waiting at most `timeout_ns` for the root's
/// answer. To be freed with h_group_helper_close or
/// h_group_helper_free.
///
/// Errors: H_SEED, not a seed, or one of another protocol; H_REFUSED, the seed is old or
/// forged, or the
/// root's owner does not admit this process; H_LIMIT, the root has as many as it may,
/// or its process has, or this one; H_NOT_FOUND, its process is gone; H_CLOSED, it closed
/// meanwhile; H_TIMED_OUT; H_INVALID, an argument or a setting; H_VERSION; H_MISBEHAVED;
/// H_SYSTEM; for another host H_NO_HOST, H_UNREACHABLE, H_UNTRUSTED, H_SECRET. Nothing is
/// left of the attempt.
h_status h_group_helper_grow(h_node_t *node,
                             const h_seed_t *seed,
                             int64_t timeout_ns,
                             h_group_helper_t **helper);

/// Grows a helper of the service "[user@]name". Waits within the time limit for a
/// name without a server, or whose server's process is ending, unless the setting
/// wait_for_names is off; otherwise as h_group_helper_grow.
///
/// Errors: as h_group_helper_grow; H_NOT_FOUND, the name has no server, or there is no
/// such user; H_INVALID, not a name of a service; H_UNREACHABLE, for another host.
h_status h_group_helper_connect(h_node_t *node,
                                const char *name,
                                int64_t timeout_ns,
                                h_group_helper_t **helper);

/// Grows a helper of the root that a rank offers under `name`. Waits at most
/// `timeout_ns` for the offer, and while too many ranks of other hosts ask it at once; otherwise
/// as h_group_helper_grow.
///
/// Errors: H_INVALID, there is no such rank, or the name is invalid; H_TIMED_OUT, the rank
/// did not offer it; H_UNREACHABLE; H_LIMIT; H_CLOSED. Nothing is left of the attempt.
h_status h_group_helper_grow_from(h_job_t *job,
                                  uint32_t rank,
                                  const char *name,
                                  int64_t timeout_ns,
                                  h_group_helper_t **helper);

/// Sends a part that a member has delegated to this helper, waiting at most `timeout_ns` for room.
///
/// Errors: as h_group_member_send; H_INVALID, not a part.
h_status h_group_helper_send(h_group_helper_t *helper,
                             const h_part_t *part,
                             const void *data,
                             size_t length,
                             int64_t timeout_ns);

/// Closes a helper: every sent message leaves first, for at most
/// `timeout_ns`. Then frees it, whatever the result.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED.
h_status h_group_helper_close(h_group_helper_t *helper, int64_t timeout_ns);

/// Frees a helper without waiting. Null is allowed.
/// Queued messages may be lost.
void h_group_helper_free(h_group_helper_t *helper);

/// Makes a publisher without subscribers; `config` may be null. To be freed with h_publisher_close
/// or h_publisher_free.
///
/// Errors: H_INVALID, an unknown when_slow; H_LIMIT, a number is not allowed, or there is no memory
/// for the pool, for example because a control group of the process leaves less. Nothing is left.
h_status h_publisher_new(h_node_t *node,
                         const h_publish_config_t *config,
                         h_publisher_t **publisher);

/// A seed from which a subscriber can be grown, by any process that may
/// connect; each call makes another.
///
/// Errors: H_SYSTEM, the service for seeds cannot be offered.
h_status h_publisher_seed(h_publisher_t *publisher, h_seed_t *seed);

/// Lets subscribers find this publisher by name. `access` is
/// an h_access; `gid` is used for H_ACCESS_GROUP only.
///
/// Errors: H_INVALID, not a name of a service; H_IN_USE; H_REFUSED; H_SYSTEM. No name was
/// taken.
h_status h_publisher_serve(h_publisher_t *publisher,
                           const char *name,
                           uint32_t access,
                           uint32_t gid);

/// Ends the offers of this publisher: its names are free at once for
/// another, its seeds are worthless, and connected peers stay so.
h_status h_publisher_stop_serving(h_publisher_t *publisher);

/// Asks `admit` about each process that wants to grow a subscriber; null: all
/// permitted ones are let in again. See h_admission_t.
h_status h_publisher_set_admission(h_publisher_t *publisher, h_admission_t admit, void *context);

/// Offers this publisher, which is of the job's node, to the other ranks.
/// They wait until then. End points of one kind have different names; freeing an end point
/// frees its names.
///
/// Errors: H_INVALID, the name is invalid, or the end point is not of h_job_node; H_IN_USE,
/// this rank offers another of the same kind under it.
h_status h_publisher_offer(h_publisher_t *publisher, h_job_t *job, const char *name);

/// Publishes a sample of `length` bytes; `number`, which may be null, gets the number of samples
/// published before it. A short sample is copied to each subscriber, a longer one once, into the
/// pool; it takes a loan for the duration of the call.
///
/// Waits, at most `timeout_ns`, only for subscribers of H_WHEN_SLOW_WAIT. Samples that subscribers
/// have yet to be sent leave in later calls with the node, or in its progress thread.
///
/// Errors, nothing was published: H_FULL, the time limit was 0; H_TIMED_OUT; H_TOO_LONG; H_LIMIT,
/// every loan is out; H_FORKED; H_SYSTEM.
h_status h_publisher_publish(h_publisher_t *publisher,
                             const void *data,
                             size_t length,
                             int64_t timeout_ns,
                             uint64_t *number);

/// Lends a sample of `length` bytes of the pool, to be written in place; never waits. Its bytes are
/// those of any earlier sample. To be published with h_publisher_publish_loan, or freed with
/// h_loan_free. One thread at a time may use a loan, which ends when it is published.
///
/// Errors: H_TOO_LONG, more than sample_bytes_max, or there is no pool; H_LIMIT, every loan is out.
h_status h_publisher_loan(h_publisher_t *publisher, size_t length, h_loan_t **loan);

/// The address of a loan's bytes, and their number; `length` may be null. The caller may write them
/// until the loan is published or freed, and must not touch them afterwards.
///
/// Errors: H_FORKED.
h_status h_loan_data(h_loan_t *loan, void **data, size_t *length);

/// Shortens a loan's sample to at most `length` bytes.
///
/// Errors: H_FORKED.
h_status h_loan_truncate(h_loan_t *loan, size_t length);

/// Publishes a loan: its bytes stay in place, and each subscriber gets a message with their
/// position. Otherwise as h_publisher_publish. H_OK: the loan is freed, and the pointer to its
/// bytes is no longer valid. On an error it is as it was, and can be published again.
///
/// Errors: also H_INVALID, a loan of another publisher.
h_status h_publisher_publish_loan(h_publisher_t *publisher,
                                  h_loan_t *loan,
                                  int64_t timeout_ns,
                                  uint64_t *number);

/// Frees a loan that was not published. Null is allowed.
void h_loan_free(h_loan_t *loan);

/// Waits, at most `timeout_ns`, until every subscriber has been sent all samples that are kept for
/// it. Short samples then arrive even if this process ends; samples of the pool are readable only
/// while it runs: see h_publisher_drain.
///
/// Errors: H_FULL, the time limit was 0; H_TIMED_OUT; H_FORKED; H_SYSTEM.
h_status h_publisher_flush(h_publisher_t *publisher, int64_t timeout_ns);

/// h_publisher_flush, and waits until subscribers have released every sample of the pool: call it
/// before freeing the publisher, which frees the pool.
h_status h_publisher_drain(h_publisher_t *publisher, int64_t timeout_ns);

/// The publisher's counts.
h_status h_publisher_counts(h_publisher_t *publisher, h_publisher_counts_t *counts);

/// The publisher's subscribers, and how each keeps up: all of them, or as many as `capacity` holds;
/// `count` gets the number that there are.
h_status h_publisher_subscribers(h_publisher_t *publisher,
                                 h_subscriber_state_t *states,
                                 size_t capacity,
                                 size_t *count);

/// Closes a publisher: every queued message of the node leaves first, for at most
/// `timeout_ns`. Then frees it, whatever the result.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED.
h_status h_publisher_close(h_publisher_t *publisher, int64_t timeout_ns);

/// Frees a publisher without waiting. Null is allowed.
/// Its subscribers get a goodbye, but one that has yet to be sent a sample, or that missed the
/// last, gets H_HUNG_UP: see h_publisher_flush. Its pool is freed: see h_publisher_drain. The
/// caller still has to free the loans.
void h_publisher_free(h_publisher_t *publisher);

/// Grows a subscriber from a seed, waiting at most `timeout_ns` for the publisher's
/// answer. To be freed with h_subscriber_close or
/// h_subscriber_free.
/// `config` may be null.
///
/// Errors: H_SEED, not a seed, or one of another protocol; H_REFUSED, the seed is old or
/// forged, or the
/// publisher's owner does not admit this process; H_LIMIT, the publisher has as many as it may,
/// or its process has, or this one; H_NOT_FOUND, its process is gone; H_CLOSED, it closed
/// meanwhile; H_TIMED_OUT; H_INVALID, an argument or a setting; H_VERSION; H_MISBEHAVED;
/// H_SYSTEM; for another host H_NO_HOST, H_UNREACHABLE, H_UNTRUSTED, H_SECRET. Nothing is
/// left of the attempt.
h_status h_subscriber_grow(h_node_t *node,
                           const h_seed_t *seed,
                           const h_subscribe_config_t *config,
                           int64_t timeout_ns,
                           h_subscriber_t **subscriber);

/// Grows a subscriber of the service "[user@]name". Waits within the time limit for a
/// name without a server, or whose server's process is ending, unless the setting
/// wait_for_names is off; otherwise as h_subscriber_grow.
///
/// Errors: as h_subscriber_grow; H_NOT_FOUND, the name has no server, or there is no
/// such user; H_INVALID, not a name of a service; H_UNREACHABLE, for another host.
h_status h_subscriber_connect(h_node_t *node,
                              const char *name,
                              const h_subscribe_config_t *config,
                              int64_t timeout_ns,
                              h_subscriber_t **subscriber);

/// Grows a subscriber of the publisher that a rank offers under `name`. Waits at most
/// `timeout_ns` for the offer, and while too many ranks of other hosts ask it at once; otherwise
/// as h_subscriber_grow.
///
/// Errors: H_INVALID, there is no such rank, or the name is invalid; H_TIMED_OUT, the rank
/// did not offer it; H_UNREACHABLE; H_LIMIT; H_CLOSED. Nothing is left of the attempt.
h_status h_subscriber_grow_from(h_job_t *job,
                                uint32_t rank,
                                const char *name,
                                const h_subscribe_config_t *config,
                                int64_t timeout_ns,
                                h_subscriber_t **subscriber);

/// Receives the next sample, in the order of publication, waiting at most `timeout_ns`. To be freed
/// with h_sample_free, which gives a sample of the pool back to the publisher.
///
/// Errors: H_NOTHING, no sample waits and the time limit was 0; H_TIMED_OUT; H_CLOSED, H_DIED,
/// H_HUNG_UP, the publisher is gone or has disconnected this subscriber, and all arrived samples
/// were received; H_MISBEHAVED; H_FORKED; H_SYSTEM.
h_status h_subscriber_receive(h_subscriber_t *subscriber, int64_t timeout_ns, h_sample_t **sample);

/// A sample's description, with the address of its bytes.
h_status h_sample_info(const h_sample_t *sample, h_sample_info_t *info);

/// Copies `length` bytes from `offset` of a sample to `to`. If the publisher has disconnected this
/// subscriber, which has yet to learn of it, the bytes of a volatile sample may be those of
/// another.
///
/// Errors: H_INVALID, outside the sample; H_CLOSED, it is volatile, and its publisher is gone;
/// H_FORKED.
h_status h_sample_read(const h_sample_t *sample, size_t offset, void *to, size_t length);

/// Frees a sample; this releases one of the pool. Its bytes are no longer valid. Null is allowed. A
/// sample may be freed after its subscriber.
void h_sample_free(h_sample_t *sample);

/// The number of samples left out so far, before the received ones.
h_status h_subscriber_missed(h_subscriber_t *subscriber, uint64_t *missed);

/// The identity of the other end, from the kernel.
h_status h_subscriber_peer(h_subscriber_t *subscriber, h_peer_t *peer);

/// The path that the link takes, and the reason: a text, copied to `buffer` and followed by
/// a zero byte; `length`, which may be null, gets the number of bytes before that.
///
/// Errors: H_TOO_LONG, `length` is written.
h_status h_subscriber_explain(h_subscriber_t *subscriber,
                              char *buffer,
                              size_t capacity,
                              size_t *length);

/// Closes a subscriber: every queued message of the node leaves first, for at most
/// `timeout_ns`. Then frees it, whatever the result.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED.
h_status h_subscriber_close(h_subscriber_t *subscriber, int64_t timeout_ns);

/// Frees a subscriber without waiting. Null is allowed.
/// Samples that were not received are lost; the publisher is notified.
void h_subscriber_free(h_subscriber_t *subscriber);

/// Makes a listener; `config` may be null. To be freed with h_byte_listener_close or
/// h_byte_listener_free.
///
/// Errors: H_LIMIT, a number is not allowed.
h_status h_byte_listener_new(h_node_t *node,
                             const h_byte_config_t *config,
                             h_byte_listener_t **listener);

/// A seed from which a byte stream can be grown, by any process that may
/// connect; each call makes another.
///
/// Errors: H_SYSTEM, the service for seeds cannot be offered.
h_status h_byte_listener_seed(h_byte_listener_t *listener, h_seed_t *seed);

/// Lets byte streams find this listener by name. `access` is
/// an h_access; `gid` is used for H_ACCESS_GROUP only.
///
/// Errors: H_INVALID, not a name of a service; H_IN_USE; H_REFUSED; H_SYSTEM. No name was
/// taken.
h_status h_byte_listener_serve(h_byte_listener_t *listener,
                               const char *name,
                               uint32_t access,
                               uint32_t gid);

/// Ends the offers of this listener: its names are free at once for
/// another, its seeds are worthless, and connected peers stay so.
h_status h_byte_listener_stop_serving(h_byte_listener_t *listener);

/// Asks `admit` about each process that wants to grow a byte stream; null: all
/// permitted ones are let in again. See h_admission_t.
h_status h_byte_listener_set_admission(h_byte_listener_t *listener,
                                       h_admission_t admit,
                                       void *context);

/// Offers this listener, which is of the job's node, to the other ranks.
/// They wait until then. End points of one kind have different names; freeing an end point
/// frees its names.
///
/// Errors: H_INVALID, the name is invalid, or the end point is not of h_job_node; H_IN_USE,
/// this rank offers another of the same kind under it.
h_status h_byte_listener_offer(h_byte_listener_t *listener, h_job_t *job, const char *name);

/// Accepts the next connection, waiting at most `timeout_ns`. Its bytes may be there already. To be
/// freed with h_byte_stream_close or h_byte_stream_free; it outlives the listener.
///
/// Errors: H_NOTHING, no connection waits and the time limit was 0; H_TIMED_OUT; H_FORKED;
/// H_SYSTEM.
h_status h_byte_listener_accept(h_byte_listener_t *listener,
                                int64_t timeout_ns,
                                h_byte_stream_t **stream);

/// The number of connections, accepted or not, and of peers that were disconnected because they
/// broke the rules. Either pointer may be null.
h_status h_byte_listener_connections(h_byte_listener_t *listener,
                                     size_t *connections,
                                     uint64_t *misbehaved);

/// Closes a listener: every queued message of the node leaves first, for at most
/// `timeout_ns`. Then frees it, whatever the result.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED.
h_status h_byte_listener_close(h_byte_listener_t *listener, int64_t timeout_ns);

/// Frees a listener without waiting. Null is allowed.
/// Gives its name up, and closes connections that were not accepted; accepted ones go on.
void h_byte_listener_free(h_byte_listener_t *listener);

/// Grows a byte stream from a seed, waiting at most `timeout_ns` for the listener's
/// answer. To be freed with h_byte_stream_close or
/// h_byte_stream_free.
/// `config` may be null.
///
/// Errors: H_SEED, not a seed, or one of another protocol; H_REFUSED, the seed is old or
/// forged, or the
/// listener's owner does not admit this process; H_LIMIT, the listener has as many as it may,
/// or its process has, or this one; H_NOT_FOUND, its process is gone; H_CLOSED, it closed
/// meanwhile; H_TIMED_OUT; H_INVALID, an argument or a setting; H_VERSION; H_MISBEHAVED;
/// H_SYSTEM; for another host H_NO_HOST, H_UNREACHABLE, H_UNTRUSTED, H_SECRET. Nothing is
/// left of the attempt.
h_status h_byte_stream_grow(h_node_t *node,
                            const h_seed_t *seed,
                            const h_byte_config_t *config,
                            int64_t timeout_ns,
                            h_byte_stream_t **stream);

/// Grows a byte stream of the service "[user@]name". Waits within the time limit for a
/// name without a server, or whose server's process is ending, unless the setting
/// wait_for_names is off; otherwise as h_byte_stream_grow.
///
/// Errors: as h_byte_stream_grow; H_NOT_FOUND, the name has no server, or there is no
/// such user; H_INVALID, not a name of a service; H_UNREACHABLE, for another host.
h_status h_byte_stream_connect(h_node_t *node,
                               const char *name,
                               const h_byte_config_t *config,
                               int64_t timeout_ns,
                               h_byte_stream_t **stream);

/// Grows a byte stream of the listener that a rank offers under `name`. Waits at most
/// `timeout_ns` for the offer, and while too many ranks of other hosts ask it at once; otherwise
/// as h_byte_stream_grow.
///
/// Errors: H_INVALID, there is no such rank, or the name is invalid; H_TIMED_OUT, the rank
/// did not offer it; H_UNREACHABLE; H_LIMIT; H_CLOSED. Nothing is left of the attempt.
h_status h_byte_stream_grow_from(h_job_t *job,
                                 uint32_t rank,
                                 const char *name,
                                 const h_byte_config_t *config,
                                 int64_t timeout_ns,
                                 h_byte_stream_t **stream);

/// Reads up to `capacity` bytes, waiting at most `timeout_ns` for the first of them; `length` gets
/// their number. 0: the other side has shut down its direction, and all of its bytes were read.
///
/// Errors, nothing was read: H_NOTHING, no byte has come and the time limit was 0; H_TIMED_OUT;
/// H_INVALID, a capacity of 0; H_DIED, H_CLOSED, the other side is gone without a shutdown;
/// H_MISBEHAVED; H_FORKED; H_SYSTEM.
h_status h_byte_stream_read(h_byte_stream_t *stream,
                            int64_t timeout_ns,
                            void *to,
                            size_t capacity,
                            size_t *length);

/// Sends as many of `length` bytes as there is room for, waiting at most `timeout_ns` for room for
/// the first of them; `taken` gets their number. These bytes arrive even if this process ends.
///
/// Errors, nothing was sent: H_FULL, the time limit was 0; H_TIMED_OUT; H_CLOSED, H_DIED, the other
/// side is gone; H_STATE, h_byte_stream_shutdown was called; H_MISBEHAVED; H_FORKED; H_SYSTEM.
h_status h_byte_stream_write(h_byte_stream_t *stream,
                             const void *data,
                             size_t length,
                             int64_t timeout_ns,
                             size_t *taken);

/// Sends all of `length` bytes, waiting at most `timeout_ns` for room. `taken`, which may be null,
/// gets the number of bytes that were sent, also if the call fails.
///
/// Errors: as h_byte_stream_write; do not send the taken bytes again.
h_status h_byte_stream_write_all(h_byte_stream_t *stream,
                                 const void *data,
                                 size_t length,
                                 int64_t timeout_ns,
                                 size_t *taken);

/// Ends this side's direction, waiting at most `timeout_ns` for room: the other side reads the
/// bytes written so far, and then the end. Reading goes on. Closing does the same.
///
/// Errors: as h_byte_stream_write; the direction is still open, and the call may be repeated.
h_status h_byte_stream_shutdown(h_byte_stream_t *stream, int64_t timeout_ns);

/// The identity of the other end, from the kernel.
h_status h_byte_stream_peer(h_byte_stream_t *stream, h_peer_t *peer);

/// The path that the link takes, and the reason: a text, copied to `buffer` and followed by
/// a zero byte; `length`, which may be null, gets the number of bytes before that.
///
/// Errors: H_TOO_LONG, `length` is written.
h_status h_byte_stream_explain(h_byte_stream_t *stream,
                               char *buffer,
                               size_t capacity,
                               size_t *length);

/// Closes a stream: every queued message of the node leaves first, for at most
/// `timeout_ns`. Then frees it, whatever the result.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED.
h_status h_byte_stream_close(h_byte_stream_t *stream, int64_t timeout_ns);

/// Frees a stream without waiting. Null is allowed.
/// The other side reads all written bytes, and then the end.
void h_byte_stream_free(h_byte_stream_t *stream);

/// Waits at most `timeout_ns` until one of several end points has something to receive: a receive
/// would return at once, unless another thread receives first. `index` gets the first such end
/// point. All end points must be of this node.
///
/// Errors: H_NOTHING, no end point has anything and the time limit was 0; H_TIMED_OUT; H_INVALID,
/// an unknown kind, or an end point of another node; H_FORKED; H_SYSTEM.
h_status h_wait_any(h_node_t *node,
                    const h_end_point_t *end_points,
                    size_t count,
                    int64_t timeout_ns,
                    size_t *index);

/// Exports `bytes` of new zeroed memory to the other side of `link`: whole pages of 4096 bytes, one
/// holder, and access (`access`, an h_aperture_access) that is fixed for the aperture's life. All
/// of the memory is charged to this process now. `number` gets the aperture's number, which is the
/// same at both ends of the link; messages refer to the aperture by it. An event of kind
/// H_EVENT_APERTURE_READY reports that the holder has mapped it; H_EVENT_APERTURE_REFUSED gives the
/// reason if it will not.
///
/// Errors: H_INVALID, `bytes` is not whole pages, or `access` is invalid; H_LIMIT; H_FULL, not now:
/// the other side has yet to map others; H_NO_SUCH, no such link; H_STATE, this link cannot carry
/// apertures; H_SYSTEM. Nothing was done.
h_status h_export(h_node_t *node, h_link_t link, uint64_t bytes, uint32_t access, uint32_t *number);

/// Exports a read-only aperture of this node, `number` on `link`, to the other side of `also` as
/// well; `also_number` gets its number there. Both holders see the same pages. Each holder is
/// revoked separately, and the memory is freed with the last; h_aperture_reclaim takes the aperture
/// from all of them. A revoked holder that keeps its mapping sees further writes as long as the
/// memory exists.
///
/// Errors: H_NO_SUCH, no such aperture of this node, or no such link; H_STATE, the aperture is
/// read-write, or this link cannot carry apertures; otherwise as h_export. Nothing was done.
h_status h_export_also(h_node_t *node,
                       h_link_t link,
                       uint32_t number,
                       h_link_t also,
                       uint32_t *also_number);

/// Opens an aperture that this node has exported or holds, as soon as its event has come. To be
/// freed with h_aperture_free. `access`, which may be null, gets the holder's access: an
/// h_aperture_access.
///
/// Errors: H_NO_SUCH, it is not an aperture of this node, was revoked, its link has ended, or it
/// has no memory yet.
h_status h_aperture_open(h_node_t *node,
                         h_link_t link,
                         uint32_t number,
                         uint32_t *access,
                         h_aperture_t **aperture);

/// Frees an aperture handle of h_aperture_open. The aperture stays as it is; see h_aperture_release
/// and h_aperture_revoke. Null is allowed.
void h_aperture_free(h_aperture_t *aperture);

/// The bytes of an aperture.
h_status h_aperture_bytes(h_aperture_t *aperture, uint64_t *bytes);

/// Copies `length` bytes of `from` to `offset` of an aperture. A message that this thread sends
/// afterwards makes them visible to its receiver.
///
/// Errors: H_INVALID, outside the aperture; H_REFUSED, the holder may not write; H_CLOSED, it was
/// revoked, or its link has ended.
h_status h_aperture_write(h_aperture_t *aperture, uint64_t offset, const void *from, size_t length);

/// Copies `length` bytes from `offset` of an aperture to `to`. The other side may change them at
/// any time: copy the bytes that you need, check the copy, and use only that.
///
/// Errors: H_INVALID, outside the aperture; H_CLOSED, it was revoked, or its link has ended.
h_status h_aperture_read(h_aperture_t *aperture, uint64_t offset, void *to, size_t length);

/// Stores the word at `offset`, a multiple of 8, atomically, after all of this thread's earlier
/// writes.
///
/// Errors: as h_aperture_write.
h_status h_aperture_write_u64(h_aperture_t *aperture, uint64_t offset, uint64_t value);

/// Reads the word at `offset`, a multiple of 8, atomically; later reads see all that the writer
/// wrote before the word.
///
/// Errors: as h_aperture_read.
h_status h_aperture_read_u64(h_aperture_t *aperture, uint64_t offset, uint64_t *value);

/// Revokes an aperture that this node has exported, at once: its pages are given back, and later
/// writes of the holder reach no other process. If a read-only aperture has other holders
/// (h_export_also), only this holder is notified; the pages stay for the others, and handles of
/// h_aperture_open go on reading and writing them.
///
/// Errors: H_NO_SUCH.
h_status h_aperture_revoke(h_node_t *node, h_link_t link, uint32_t number);

/// Revokes an aperture that this node has exported, at once, and makes a message area of its bytes:
/// from then on they are stable. The bytes are copied once. All holders lose the aperture, those of
/// h_export_also included.
///
/// Errors: H_NO_SUCH; H_LIMIT; H_SYSTEM. The aperture is as it was.
h_status h_aperture_reclaim(h_node_t *node, h_link_t link, uint32_t number, h_area_t *area);

/// Releases an aperture that this node holds, and notifies its owner.
///
/// Errors: H_NO_SUCH.
h_status h_aperture_release(h_node_t *node, h_link_t link, uint32_t number);

/// Joins the job that started this process: `hamlyn run`, a launcher that speaks PMIx, or one that
/// speaks PMI-1; without a launcher the job has one rank. Waits until all ranks have joined, at
/// most the setting job_timeout_ms. `settings` is as for h_node_new. If this process has joined
/// already, returns another handle to the same job, whatever the settings. To be freed with
/// h_job_free.
///
/// Errors: H_INVALID, a setting, or the launcher's variables in the environment; H_TIMED_OUT, ranks
/// did not join (the text names them, if the launcher does), or the launcher does not answer;
/// H_CLOSED, the launcher is gone, or a rank has ended; H_MISBEHAVED, the launcher broke its
/// protocol; H_SYSTEM. The process has no job then.
h_status h_job_open(const h_setting_t *settings, size_t count, h_job_t **job);

/// Frees a job. Freeing the last handle tells the launcher that this rank has finished with it.
/// Objects made with the job go on working. Null is allowed.
void h_job_free(h_job_t *job);

/// The number of this process, from 0 to one less than h_job_size.
h_status h_job_rank(h_job_t *job, uint32_t *rank);

/// How many ranks the job has.
h_status h_job_size(h_job_t *job, uint32_t *size);

/// The launcher of this rank: an h_launcher.
h_status h_job_launcher(h_job_t *job, uint32_t *launcher);

/// Whether a rank is on this host, so that messages to it go through a ring.
///
/// Errors: H_INVALID, there is no such rank.
h_status h_job_is_local(h_job_t *job, uint32_t rank, bool *is_local);

/// The node of the job's end points: another handle to it, to be freed with h_node_free or h_close,
/// before or after the job.
h_status h_job_node(h_job_t *job, h_node_t **node);

/// Puts bytes that all other ranks can get with h_job_get after the next h_job_fence. A name is 1
/// to 32 of a-z A-Z 0-9 . _ -, and is put once. The launcher carries the bytes, and limits them:
/// Hydra to 511, `hamlyn run` and PMIx to 32,256.
///
/// Errors: H_INVALID, the name is invalid; H_IN_USE, this rank has put something under it;
/// H_TOO_LONG; H_TIMED_OUT, H_CLOSED, H_MISBEHAVED, the launcher.
h_status h_job_put(h_job_t *job, const char *name, const void *data, size_t length);

/// Gets the bytes that `rank` has put under `name` before the last fence, copied to `buffer`;
/// `length`, which may be null, gets their number.
///
/// Errors: H_NO_SUCH, it has put nothing there; H_TOO_LONG, `length` is written; H_INVALID, there
/// is no such rank; H_TIMED_OUT, H_CLOSED, H_MISBEHAVED, the launcher.
h_status h_job_get(h_job_t *job,
                   uint32_t rank,
                   const char *name,
                   void *buffer,
                   size_t capacity,
                   size_t *length);

/// Waits at most `timeout_ns` until all ranks have called this as often as this one. Afterwards all
/// ranks can get the bytes put before it. Concurrent calls of several threads are one fence each,
/// in turn: two calls here match two calls of every other rank. A fence goes through the launcher,
/// and is for setting up: use a group's barrier (h_group_barrier) while messages are sent.
///
/// Errors: H_TIMED_OUT, the fence stays begun, and the next call goes on waiting for it: the text
/// names the missing ranks, if the launcher does; H_CLOSED, ranks have ended, or the launcher is
/// gone; H_MISBEHAVED.
h_status h_job_fence(h_job_t *job, int64_t timeout_ns);

/// The stream to a rank, which receives it with h_job_stream_from: waits for that, at most
/// `timeout_ns`. To be freed with h_stream_sender_close or h_stream_sender_free.
///
/// Errors: as h_stream_sender_grow_from.
h_status h_job_stream_to(h_job_t *job,
                         uint32_t rank,
                         int64_t timeout_ns,
                         h_stream_sender_t **sender);

/// The stream from a rank, which grows it with h_job_stream_to at any time. To be freed with
/// h_stream_receiver_close or h_stream_receiver_free.
///
/// Errors: H_INVALID, there is no such rank; H_IN_USE, there is one already; H_SYSTEM.
h_status h_job_stream_from(h_job_t *job, uint32_t rank, h_stream_receiver_t **receiver);

/// This rank's server of calls; every rank may be its client. To be freed with h_server_close or
/// h_server_free.
///
/// Errors: H_IN_USE, there is one already; H_SYSTEM.
h_status h_job_server(h_job_t *job, h_server_t **server);

/// A client of a rank's h_job_server: waits until the rank has one, at most `timeout_ns`. To be
/// freed with h_client_close or h_client_free.
///
/// Errors: as h_client_grow_from.
h_status h_job_client(h_job_t *job, uint32_t rank, int64_t timeout_ns, h_client_t **client);

/// A seed from which a sender grows the end point that `rank` offers, now or later, under `name`
/// and as `kind`, an h_kind: for uses that h_stream_sender_grow_from and the like do not cover. A
/// secret of the job.
///
/// Errors: H_INVALID, there is no such rank or kind, or the name is invalid.
h_status h_job_seed_of(h_job_t *job,
                       uint32_t rank,
                       uint32_t kind,
                       const char *name,
                       h_seed_t *seed);

/// The launcher that was found, why not another, the number of ranks on this host, and those of
/// them to which this rank has made links: a text, copied to `buffer` and followed by a zero byte;
/// `length`, which may be null, gets the number of bytes before that.
///
/// Errors: H_TOO_LONG, `length` is written.
h_status h_job_explain(h_job_t *job, char *buffer, size_t capacity, size_t *length);

/// Sets the function that gets an entry for each link that comes or goes, and each peer that is
/// refused or disconnected, with the reason, in all nodes of this process; it replaces the previous
/// function. Null: no log. Messages are not logged. At most 64 entries a second are logged for the
/// peers of one user, and then the number of further ones ("left-out").
///
/// The function and its context must stay until another function is set and every node that existed
/// then has been freed, since the function may be running at that moment.
h_status h_set_log(h_log_t log, void *context);

/// Sets the function that finds services of other hosts whose names give no place
/// ("hamlyn://service"), instead of the setting `directory`; null: the setting applies. Attempts
/// that already have a result from the previous directory keep it.
///
/// `release`, which may be null, is called with `context` once `look_up` has no caller left:
/// another function is set, or the node and all end points made from it have been freed, and every
/// call of `look_up` has returned. It runs in that call or in a thread of the library. If this call
/// fails, it keeps nothing and `release` is not called; if `look_up` is null, `context` and
/// `release` are ignored.
///
/// Errors: H_STATE, the library was built without other hosts; H_FORKED.
h_status h_set_directory(h_node_t *node, h_look_up_t look_up, void *context, h_release_t release);

/// Adds a place, host:port, behind the others. Only inside an h_look_up_t.
///
/// Errors: H_INVALID, not a place; H_LIMIT, there are 64.
h_status h_places_add(h_places_t *places, const char *place);

/// Gives the reason why an h_look_up_t is about to return false; it becomes part of the connecting
/// call's error. Only inside an h_look_up_t.
///
/// Errors: H_INVALID, the text is not UTF-8.
h_status h_places_fail(h_places_t *places, const char *why);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* HAMLYN_H */
