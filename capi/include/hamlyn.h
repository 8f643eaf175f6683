/*
 * Hamlyn: messages between programs that do not trust one another, at the speed of memory.
 * For C99 and later, and C++11 and later. Made from the source: do not edit.
 *
 * What holds for every function, unless it says otherwise:
 *
 * Results. Most functions return an h_status; H_OK is 0. h_error_message() is the text of this
 * thread's last failure. Outputs, the pointers at the end of the list of arguments, are written
 * only if the call succeeds. A call that failed has done nothing, and can be made again, with these
 * exceptions: h_request_reply, h_request_fail, h_close and every h_.._close free what they are given,
 * whatever they return (H_INVALID apart), and must not be called twice; after H_INCOMPLETE and
 * H_CUT_OFF a part has left.
 *
 * Arguments. A null or misaligned pointer where one is needed is H_INVALID, with a text that names
 * it. Data pointers may be null where their length is 0. What cannot be checked is the caller's
 * duty: that a pointer points to as much as is said, and that a handle has not been freed. Text is
 * UTF-8 and ends in a zero byte.
 *
 * Ownership. What h_.._new and the like return through a pointer to a pointer is freed with the
 * function of that name, once. h_area_t, h_queue_t, h_slot_t, h_link_t, h_handle_t and h_ticket_t
 * are values. Nothing that is passed in is kept: it has been copied, or used, when the call
 * returns.
 *
 * Threads. Any number of threads may call with the same node or end point, except that nobody may
 * be in a call with what is being freed, nor make one afterwards. Servers, clients, publishers and byte
 * streams work for several threads at once. The other end points serve one call at a time: a second one waits for
 * the first within its own time limit; a function that has no timeout_ns, which may be one that only
 * asks for a number, waits for ten seconds (H_STATE). A receive
 * lets others in while it waits, except h_tagged_get_specific_tag; sends and calls of groups do
 * not.
 *
 * A call that waits ends with what it waits for, its time limit, or its link. Another thread ends
 * h_server_receive with h_server_drain, and h_client_finish with h_client_forget; no other call, such as
 * h_recv_block or h_client_call, can be ended from elsewhere. A thread that is to end some day gives a
 * limit, of a tenth of a second, say, and calls again.
 *
 * Signals. No function may be called from a signal handler. A signal ends no call that waits.
 *
 * Time limits are nanoseconds, as int64_t: 0 does not wait, a negative one (H_FOREVER) waits as
 * long as it takes. A stopped process is not a dead one, so give limits.
 *
 * Mistakes of the library itself are caught and become H_PANIC. No call aborts the process because
 * of its arguments, or of anything that another process does.
 *
 * After fork() nodes and what was made from them are the parent's; the child gets H_FORKED.
 */


#ifndef HAMLYN_H
#define HAMLYN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/// No time limit.
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

/// Room for what another host has proved to be, and a zero byte.
#define H_IDENTITY_BYTES 256

/// Room for the text of an event, and a zero byte.
#define H_EVENT_TEXT_BYTES 4097

/// The index of a message in fast mode, which has no metadata entry.
#define H_INDEX_FAST UINT32_MAX

/// Most bytes of a seed.
#define H_SEED_BYTES_MAX 133

/// Room for a seed as text, and the zero byte that ends it.
#define H_SEED_TEXT_BYTES 267

/// Bytes of a delegated part.
#define H_PART_BYTES 52

/// For h_subscribe_config_t::history: none of the samples that were published before.
#define H_HISTORY_NONE 4294967295

/// What a call came to. `H_OK` is 0. `h_error_message` says more of every other value.
///
/// `H_NOTHING`, `H_FULL` and `H_TIMED_OUT` mean "not now"; the others that the call cannot succeed
/// as it was made.
typedef enum {
    /// Done.
    H_OK = 0,
    /// Not now: nothing has arrived, or no event waits. Nothing was taken.
    H_NOTHING = 1,
    /// Not now: the link is full and so is the work queue, or the other side has given no room.
    /// Nothing was sent.
    H_FULL = 2,
    /// The time limit is over. Nothing was taken, nothing was sent.
    H_TIMED_OUT = 3,
    /// The time limit was over after part of a long message had left. It will never be complete.
    H_INCOMPLETE = 4,
    /// An argument is not allowed: null, misaligned, out of range, not UTF-8. Nothing was done.
    H_INVALID = 5,
    /// What the argument names is not there: it was removed, or belongs to another node.
    H_NO_SUCH = 6,
    /// More bytes than there is room for, or than a ticket, a packet or a greeting allows.
    H_TOO_LONG = 7,
    /// As many or as much as the settings, a quota or the system allow.
    H_LIMIT = 8,
    /// It is used: a service's name by another process, an area or a queue by slots.
    H_IN_USE = 9,
    /// No service has this name, or its process is gone.
    H_NOT_FOUND = 10,
    /// Not permitted, or the other side said no.
    H_REFUSED = 11,
    /// No link leads there, or another host cannot be reached.
    H_UNREACHABLE = 12,
    /// The other side closed, or is gone. Of a stream (h_stream_receive) it says that the sender has sent
    /// everything; a byte stream says that by a length of 0.
    H_CLOSED = 13,
    /// The process at the other end died.
    H_DIED = 14,
    /// The other side broke the rules, and was sent away.
    H_MISBEHAVED = 15,
    /// These bytes are no seed, or not one for this.
    H_SEED = 16,
    /// The call is not allowed in the state that things are in.
    H_STATE = 17,
    /// The process is a child, by fork, of the one that made the node.
    H_FORKED = 18,
    /// The system refused.
    H_SYSTEM = 19,
    /// The time limit was over when part of the message had left. The rest was copied, and leaves
    /// first in the next call; the message must not be sent again.
    H_CUT_OFF = 20,
    /// The server's program answered with an error of its own: h_error_message is its text, and
    /// h_error_code its code.
    H_APPLICATION = 21,
    /// The other side ended the link before all that it had queued had left, or says that this side
    /// broke the rules: what came may not be all. It can come wherever `H_DIED` can.
    H_HUNG_UP = 22,
    /// Of a call: the server is about to close, and has not taken the request: nobody acts upon it, and
    /// it may be sent to whoever serves the name next.
    H_DRAINING = 23,
    /// The other side speaks another version of the protocol.
    H_VERSION = 24,
    /// Of another host: one end's certificate is not trusted by the other, or not for this name, or has
    /// ended; or one could not prove to be the node that it says; or what came is not TLS.
    H_UNTRUSTED = 25,
    /// Of another host: the two do not have the same secret.
    H_SECRET = 26,
    /// The name of another host has no address.
    H_NO_HOST = 27,
    /// A mistake of the library: it panicked, which was caught. Report it, with the text. What was
    /// called upon is as it was between two steps of the call, and is best freed.
    H_PANIC = 99,
} h_status;

/// What an event is.
typedef enum {
    /// Somebody wants to connect to a service of h_serve_asking: `request`, `peer`; `text` is its
    /// greeting.
    H_EVENT_REQUEST = 0,
    /// A request was withdrawn before it was answered, or did not become a link: `request`.
    H_EVENT_REQUEST_GONE = 1,
    /// A link from another node is there: `link`, `peer`, and `request` if it was asked for.
    H_EVENT_CONNECTED = 2,
    /// A link was closed by the other side, which had sent everything: `link`, `unsent`.
    H_EVENT_CLOSED = 3,
    /// The process at the other end died: `link`, `unsent`.
    H_EVENT_DIED = 4,
    /// The other side closed without a goodbye, with messages that had not left: `link`, `unsent`.
    H_EVENT_HUNG_UP = 5,
    /// The other side broke the rules, and this node closed the link: `link`, `unsent`; `text`
    /// says how.
    H_EVENT_MISBEHAVED = 6,
    /// The other side says that this node broke the rules, and closed the link: `link`, `unsent`.
    H_EVENT_EXPELLED = 7,
    /// The other side holds an aperture that this node exported: `link`, `aperture`.
    H_EVENT_APERTURE_READY = 8,
    /// Nobody will hold an aperture that this node exported, and its memory was given back: `link`,
    /// `aperture`; `text` says why.
    H_EVENT_APERTURE_REFUSED = 9,
    /// The other side has let go of an aperture that this node exported: `link`, `aperture`.
    H_EVENT_APERTURE_RELEASED = 10,
    /// This node holds an aperture that the other side exported: `link`, `aperture`.
    H_EVENT_APERTURE_HELD = 11,
    /// The other side took back an aperture that this node held: `link`, `aperture`.
    H_EVENT_APERTURE_REVOKED = 12,
    /// The other side refused messages because a ticket of its has been revoked: `link`; `request`
    /// names the ticket.
    H_EVENT_TICKET_REVOKED = 13,
    /// This process can no longer watch over the link, because the system refuses its housekeeping
    /// what it needs: `link`, `unsent`.
    H_EVENT_UNWATCHED = 14,
} h_event_kind;

/// Where a client that connects again stands.
typedef enum {
    /// It has a connection.
    H_CONNECTED = 0,
    /// It tries to connect.
    H_RECONNECTING = 1,
    /// The policy allows no more attempts. It stays so.
    H_GIVEN_UP = 2,
} h_connection_state;

/// What a slot checks of each packet.
typedef enum {
    /// The slot's key and bounds.
    H_MODE_NORMAL = 0,
    /// Key and limits of the metadata entry as well: senders that do not trust one another.
    H_MODE_PARANOID = 1,
    /// As paranoid, and an entry accepts one message until it is armed again: what has arrived can
    /// no longer change.
    H_MODE_PARANOID_ONE_SHOT = 2,
} h_mode;

/// Who may connect to a service.
typedef enum {
    /// The same user. The name lies in this user's own directory.
    H_ACCESS_SAME_USER = 0,
    /// Members of a group, and the same user. The name lies in the shared directory.
    H_ACCESS_GROUP = 1,
    /// Everybody. The name lies in the shared directory.
    H_ACCESS_ANYONE = 2,
} h_access;

/// What an end point speaks.
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
    /// Bytes both ways.
    H_KIND_BYTES = 6,
    /// Publish and subscribe.
    H_KIND_PUBLISH = 7,
    /// For h_wait_any, who accepts byte streams; seeds of such are of H_KIND_BYTES.
    H_KIND_BYTE_LISTENER = 256,
} h_kind;

/// What becomes of samples for a subscriber that does not keep up; from what burdens the publisher
/// most to what burdens it least.
typedef enum {
    /// h_publisher_publish waits for it, within its time limit: for subscribers that are trusted to
    /// go on.
    H_WHEN_SLOW_WAIT = 1,
    /// It misses the oldest of those that it has yet to be sent.
    H_WHEN_SLOW_DROP_OLDEST = 2,
    /// It misses each sample for which it has no room when that is published.
    H_WHEN_SLOW_DROP_NEWEST = 3,
    /// Its link is ended when it would miss a sample, which it is told (H_HUNG_UP). What it still has of
    /// the pool may hold other samples by then.
    H_WHEN_SLOW_SEND_AWAY = 4,
} h_when_slow;

/// What the holder of an aperture may do.
typedef enum {
    /// Read.
    H_APERTURE_READ_ONLY = 0,
    /// Read and write.
    H_APERTURE_READ_WRITE = 1,
} h_aperture_access;

/// How much an entry of the log matters.
typedef enum {
    /// As it should be: connected, closed, revoked.
    H_LOG_INFO = 0,
    /// Somebody did not get what they wanted, or is gone: refused, failed, lost, died, left-out.
    H_LOG_WARNING = 1,
    /// A rule was broken: sent-away, expelled.
    H_LOG_ERROR = 2,
} h_log_level;

/// Who started a rank.
typedef enum {
    /// Nobody: the job has one rank.
    H_LAUNCHER_NONE = 0,
    /// `hamlyn run`.
    H_LAUNCHER_RUN = 1,
    /// One that speaks PMIx: Open MPI's, PRRTE's, Slurm's.
    H_LAUNCHER_PMIX = 2,
    /// One that speaks PMI-1: MPICH's.
    H_LAUNCHER_PMI1 = 3,
} h_launcher;

/// An aperture as its holder or its owner sees it. Any number of threads may use it, without the
/// node. Its bytes may be changed by the other side at any time, so they are only ever copied.
typedef struct h_aperture_t h_aperture_t;

/// Accepts byte streams. Any number of threads may accept.
typedef struct h_byte_listener_t h_byte_listener_t;

/// One side of a connection: bytes both ways, in order. One thread may read while another writes.
typedef struct h_byte_stream_t h_byte_stream_t;

/// Calls a server. Any number of threads may call at once.
typedef struct h_client_t h_client_t;

/// Receives datagrams, one at a time. It is ready when it is made, not ready after each datagram,
/// and ready again after h_datagram_ready; what is sent while it is not ready is lost.
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

/// What one process has of Hamlyn: its interface, links, names and waiting. Any number of threads
/// may use it. A process needs one, and may have several.
///
/// After fork() the node is the parent's: the child's calls return H_FORKED and touch nothing, and
/// h_node_free there does nothing at all. The child can make a node of its own.
typedef struct h_node_t h_node_t;

/// The places of a service, as an h_look_up_t gives them. It is there until that returns.
typedef struct h_places_t h_places_t;

/// Publishes samples. Any number of threads may publish at once.
typedef struct h_publisher_t h_publisher_t;

/// A client of a named service that connects again when the server has gone or drains. Any number of
/// threads may call at once.
///
/// A request is sent to one server once. Where the connection ends before the reply has come, nobody
/// here knows whether it was carried out, and the call fails, unless it was said that twice does what
/// once does; then it is sent again over the next connection. A request that no server can have is sent
/// over the next connection in any case.
///
/// An outage that no call meets is not noticed, and costs nothing. The first call that does starts a
/// thread, which connects, and ends.
typedef struct h_reconnecting_client_t h_reconnecting_client_t;

/// A reply, to be freed with h_reply_free.
typedef struct h_reply_t h_reply_t;

/// A request that is to be replied to, once: with h_request_reply, or with h_request_free, which
/// tells the client that no reply will come. It keeps its server.
typedef struct h_request_t h_request_t;

/// A sample that has arrived, to be freed with h_sample_free.
typedef struct h_sample_t h_sample_t;

/// Receives requests. Any number of threads may receive and reply at once.
typedef struct h_server_t h_server_t;

/// Receives the records of one sender, in the order of sending.
typedef struct h_stream_receiver_t h_stream_receiver_t;

/// Sends records.
typedef struct h_stream_sender_t h_stream_sender_t;

/// Receives what one publisher publishes.
typedef struct h_subscriber_t h_subscriber_t;

/// Memory that a number of senders write into, each write announced by a tag.
typedef struct h_tagged_receiver_t h_tagged_receiver_t;

/// The sender's end of a tagged remote write.
typedef struct h_tagged_sender_t h_tagged_sender_t;

/// A setting of a node: its name ("ring_bytes") or variable ("HAMLYN_RING_BYTES"), and its value
/// as text ("64K"). docs/settings.md has them all.
typedef struct {
    /// Which setting.
    const char *name;
    /// Its value.
    const char *value;
} h_setting_t;

/// A counter.
typedef struct {
    /// Its name, ending in a zero byte. SECURITY.md says what those of refusals mean.
    char name[H_COUNTER_NAME_BYTES];
    /// Its value.
    uint64_t value;
} h_counter_t;

/// A message area of a node: contiguous memory that messages land in. A value, to be copied as one
/// likes; what was removed is refused where it is used.
typedef struct {
    /// For the library.
    uint64_t bits;
} h_area_t;

/// A notification queue of a node. A value.
typedef struct {
    /// For the library.
    uint64_t bits;
} h_queue_t;

/// What a slot is made of. Zero everywhere but in `area` and `queue` is: the whole area, normal
/// mode, one metadata entry.
typedef struct {
    /// The area that messages land in.
    h_area_t area;
    /// The queue that they are announced in.
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
    /// For the library.
    uint64_t bits;
} h_slot_t;

/// The right to send one message: where to, with which key, into which bytes. It is these bytes
/// and nothing else: they may be copied, sent in a message, written to a file, and used from any
/// process. Whoever has them has the right; the receiver revokes it by changing the key.
typedef struct {
    /// As they travel: little-endian, the same on every machine.
    uint8_t bytes[H_TICKET_BYTES];
} h_ticket_t;

/// A link of a node. A value; the name of one that has ended is not used again for long.
typedef struct {
    /// For the library.
    uint64_t bits;
} h_link_t;

/// Who is at the other end of a link, as the kernel says; -1 for what it does not say, because
/// the other process is of another namespace, or on another host.
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
    /// Of another host: from where it is connected, as address:port. Empty: it is on this host.
    char address[H_ADDRESS_BYTES];
    /// Of another host: the first name in its certificate; or the hash of one that has none; or
    /// `secret`, for whoever has this process's secret and no certificate. Otherwise empty.
    char identity[H_IDENTITY_BYTES];
} h_peer_t;

/// Something that a program may want to know or decide.
typedef struct {
    /// What it is.
    h_event_kind kind;
    /// Which link, where the kind says so.
    h_link_t link;
    /// Which request, where the kind says so; of H_EVENT_TICKET_REVOKED the ticket's slot, in the
    /// upper 32 bits, and its metadata index; 0 otherwise.
    uint64_t request;
    /// Queued messages that did not leave.
    uint64_t unsent;
    /// Which aperture of the link, where the kind says so.
    uint32_t aperture;
    /// Who, where the kind says so.
    h_peer_t peer;
    /// Bytes of `text`.
    uint64_t text_length;
    /// A greeting, or words; a zero byte is behind it.
    uint8_t text[H_EVENT_TEXT_BYTES];
} h_event_t;

/// Names a message that was sent, so that h_is_reusable can be asked about its buffer. A value.
typedef struct {
    /// For the library.
    uint64_t bits[3];
} h_handle_t;

/// Part of a message that is gathered: `length` bytes from `offset` of a send buffer area.
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
    /// Its metadata entry, or H_INDEX_FAST.
    uint32_t index;
    /// In fast mode the word that came with it; else 0.
    uint32_t word;
    /// The link over which its last packet came.
    h_link_t link;
} h_notification_t;

/// What a receiver hands out so that a sender can be grown from it, in any process that may
/// connect. A secret: who has it can send. A value; `bytes` may travel in a message or a file, and
/// h_seed_to_text makes it fit for a command line.
typedef struct {
    /// Bytes that are used.
    uint32_t length;
    /// As they travel.
    uint8_t bytes[H_SEED_BYTES_MAX];
} h_seed_t;

/// Decides whether a process may grow a sender of a receiver: true lets it in. It runs in whichever
/// thread polls, must not wait, and must not call the library. `context` is what it was set with,
/// and must stay until the receiver is freed or another is set.
typedef bool (*h_admission_t)(void *context, const h_peer_t *peer);

/// A write has arrived.
typedef struct {
    /// What its sender gave.
    uint32_t tag;
    /// The link that it came over.
    h_link_t link;
} h_tag_t;

/// A datagram has arrived.
typedef struct {
    /// Where its bytes begin in the receiver's area.
    size_t offset;
    /// How many they are.
    size_t length;
    /// Whether its sender wants an answer: see h_datagram_reply.
    bool wants_reply;
    /// The link that it came over.
    h_link_t link;
} h_datagram_t;

/// What a receiver of a stream is made of; 0 for what is in brackets.
typedef struct {
    /// Bytes of a buffer: the longest message of small records together (64 KiB).
    size_t buffer_bytes;
    /// Buffers that wait for messages, 1 to 256 (8).
    uint32_t buffers;
    /// Buffers altogether, with those that hold records which are not yet released (64).
    uint32_t buffers_max;
    /// Longest record, in bytes (64 MiB).
    size_t record_bytes_max;
    /// Bytes of an aperture for long records (none): a few times the longest. A sender that is
    /// grown for it writes them straight into this process's memory, and can change them as long
    /// as they are there: such a record is *volatile*, and only ever copied, by h_stream_read.
    uint64_t aperture_bytes;
} h_stream_config_t;

/// A record that has arrived.
typedef struct {
    /// How many records came before it.
    uint64_t number;
    /// Its bytes, where they arrived. They stand still until it is released. Null if the record is
    /// volatile.
    const void *data;
    /// How many they are.
    size_t length;
    /// Whether its sender can still change it; then h_stream_read copies what is needed, to be
    /// checked, and then used. Only where an aperture was asked for.
    bool is_volatile;
} h_record_t;

/// What a server is made of; 0 for what is in brackets.
typedef struct {
    /// Calls that each client may have outstanding (64).
    uint32_t outstanding;
    /// Bytes of a request that are sent at once; longer ones cost a round trip more (4,088, the
    /// most).
    uint32_t request_bytes;
    /// Longest request, in bytes (16 MiB).
    uint64_t request_bytes_max;
    /// Bytes of long requests that each user's clients may have here at a time, until they are replied
    /// to; further ones wait at the client, but one is always taken (64 MiB).
    uint64_t long_bytes_max;
    /// Clients at one time (64).
    uint32_t clients_max;
} h_server_config_t;

/// What a client is made of; 0 for what is in brackets.
typedef struct {
    /// Calls that may be outstanding, if the server allows as many (64).
    uint32_t outstanding;
    /// Bytes of a reply that are sent at once (4,088, the most).
    uint32_t reply_bytes;
    /// Longest reply, in bytes (16 MiB).
    uint64_t reply_bytes_max;
} h_client_config_t;

/// Names a call of one client. A value.
typedef struct {
    /// For the library.
    uint64_t bits;
} h_call_t;

/// When a client connects again, and what calls do meanwhile; 0 for what is in brackets.
typedef struct {
    /// Nanoseconds before the first attempt of an outage (10 ms). To each delay a random part of up to
    /// its own length is added, so that not all clients of a server come back at once.
    uint64_t first_delay_ns;
    /// The longest delay, before the random part, in nanoseconds (5 s). Each delay is twice the one
    /// before.
    uint64_t delay_max_ns;
    /// How long one attempt may take, in nanoseconds; a name that nobody serves is waited for as long
    /// (1 s).
    uint64_t attempt_limit_ns;
    /// Attempts in one outage (as many as it takes).
    uint64_t attempts_max;
    /// Nanoseconds of one outage, at the end of which no further attempt begins (as long as it takes).
    uint64_t outage_max_ns;
    /// Not 0: calls fail at once while there is no connection, instead of waiting for the next within
    /// their own time limit (0: they wait).
    uint32_t calls_fail;
} h_reconnect_policy_t;

/// Bytes of the caller's.
typedef struct {
    /// Where they are.
    const void *data;
    /// How many.
    size_t length;
} h_bytes_t;

/// A share of a member's part, for a helper to send, once. A value; its bytes may travel in a
/// message or a file.
typedef struct {
    /// As they travel.
    uint8_t bytes[H_PART_BYTES];
} h_part_t;

/// What a publisher is made of; 0 for what is in brackets.
typedef struct {
    /// Most bytes of a sample that is copied to each subscriber; longer ones are put into the pool
    /// (1,024; at most 2,032).
    size_t short_bytes_max;
    /// Most bytes of a sample in the pool, all of which every subscriber can read at any time, also
    /// loans that have yet to be published (no pool). The pool's memory is taken at once: this number,
    /// up to a multiple of 64, times the sum of subscribers_max times outstanding_max, the larger of
    /// backlog and history, and loans_max. With 8 MiB and the other numbers as they are, 656 MiB.
    size_t sample_bytes_max;
    /// Samples of the pool that may be on loan at once (2).
    uint32_t loans_max;
    /// The newest samples that are kept for subscribers that have no room now (16).
    uint32_t backlog;
    /// The newest samples that whoever subscribes may ask for (none).
    uint32_t history;
    /// Samples of the pool that a subscriber may have at once, at most 64 (4).
    uint32_t outstanding_max;
    /// Subscribers at one time (16).
    uint32_t subscribers_max;
    /// An h_when_slow, for subscribers that do not ask for something that burdens the publisher less
    /// (H_WHEN_SLOW_DROP_OLDEST).
    uint32_t when_slow;
} h_publish_config_t;

/// What a publisher has counted.
typedef struct {
    /// Samples that were published.
    uint64_t published;
    /// Samples that subscribers did not get because they were slow.
    uint64_t dropped;
    /// Subscribers that were sent away because they were too slow, or cannot have what is published.
    uint64_t sent_away;
    /// Subscribers that were sent away because they broke the rules.
    uint64_t misbehaved;
    /// Subscribers that there are.
    size_t subscribers;
} h_publisher_counts_t;

/// What a publisher knows of one subscriber.
typedef struct {
    /// Who it is, as the kernel says.
    h_peer_t peer;
    /// An h_when_slow: what becomes of samples for which it has no room.
    uint32_t when_slow;
    /// Whether it can be sent samples: it holds the pool, where there is one.
    bool is_served;
    /// Samples that were sent to it.
    uint64_t sent;
    /// Messages in its own memory that it had not taken when it last said how many it had.
    uint64_t untaken;
    /// Samples of the pool that it was told of and has not released.
    uint32_t outstanding;
    /// Samples that are kept, and that it has yet to be sent.
    uint64_t behind;
    /// Samples that it will not get, because it was slow.
    uint64_t dropped;
} h_subscriber_state_t;

/// What a subscriber is made of, and asks its publisher for; 0 for what is in brackets.
typedef struct {
    /// Samples that lie in its own memory until they are received, some 2 KiB each (64; at most
    /// 32,768).
    uint32_t depth;
    /// An h_when_slow: what the publisher does anyway, or something that burdens it less; else it
    /// refuses (what it does anyway).
    uint32_t when_slow;
    /// So many of the newest samples that were published before come first, at most as many as the
    /// publisher's history; H_HISTORY_NONE: none (as many as that).
    uint32_t history;
    /// Samples of the pool that it has at once, at most as many as the publisher's outstanding_max
    /// (as many as that).
    uint32_t outstanding;
} h_subscribe_config_t;

/// What a sample is.
typedef struct {
    /// How many samples were published before it, whoever got them.
    uint64_t number;
    /// How many were left out between the one that this subscriber got before and this one.
    uint64_t missed;
    /// Its bytes, which stand still until it is freed; null if it is volatile.
    const void *data;
    /// How many they are.
    size_t length;
    /// Whether it lies in the publisher's pool, where the publisher can change it at any time; then
    /// h_sample_read copies what is needed, to be checked, and then used.
    bool is_volatile;
} h_sample_info_t;

/// What a listener, or a stream that connects, is made of; 0 for what is in brackets.
typedef struct {
    /// Bytes that the other side may send before they are read: a power of two from 4 KiB to 16 MiB
    /// (256 KiB).
    uint32_t window_bytes;
    /// Packets that the other side may send before they are looked at, from 8 to 1,024 (256).
    uint32_t packets;
    /// Of a listener: connections at one time, whether they were accepted or not (256).
    uint32_t connections_max;
} h_byte_config_t;

/// An end point that may have something to receive, for h_wait_any.
typedef struct {
    /// What it speaks: an h_kind.
    uint32_t kind;
    /// An h_datagram_receiver_t, h_tagged_receiver_t, h_stream_receiver_t, h_server_t, h_group_t,
    /// h_byte_stream_t, h_subscriber_t or h_byte_listener_t, as the kind says.
    void *end_point;
} h_end_point_t;

/// One thing that happened to a link. The texts are UTF-8, end in a zero byte, and are there until the
/// function that is given them returns; what a peer wrote has nothing in it that a terminal obeys.
typedef struct {
    /// An h_log_level.
    uint32_t level;
    /// What happened, in a word: "connected", "refused", "failed", "closed", "lost", "died",
    /// "sent-away", "expelled", "revoked", "left-out".
    const char *kind;
    /// The peer's user; -1: not known.
    int64_t user;
    /// The peer's process; -1: not known.
    int64_t process;
    /// The service over which the link was made; may be empty.
    const char *service;
    /// Why; may be empty.
    const char *reason;
    /// All of it, as a line.
    const char *text;
} h_log_entry_t;

/// Is told of what happens to links. It runs in a thread of the library's that accepts connections and
/// watches for deaths, and holds no lock: it may call the library, but must not free a node, and while
/// it runs nobody new is let in. `context` is what it was set with.
typedef void (*h_log_t)(void *context, const h_log_entry_t *entry);

/// Says where `service` is, by h_places_add, in the order in which the places are to be tried; by none,
/// that nobody has it yet: whoever waits for names asks again, at first after 50 ms, then less often.
/// `timeout_ns` is what is left to whoever connects, negative if there is no limit. Returns whether it
/// could look; if not, that ends the attempt, and h_places_fail may have said why.
///
/// It runs in threads of the library's that connect, several at a time; holds no lock; and may wait:
/// whoever connects is told when its time limit is over. At most 64 connect at a time, those who are
/// still in here included. It must not free the node. `context` is what it was set with.
typedef bool (*h_look_up_t)(void *context,
                            const char *service,
                            int64_t timeout_ns,
                            h_places_t *places);

/// Is told that `context` is not used any more.
typedef void (*h_release_t)(void *context);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/// Why this thread's last call that did not return `H_OK` failed: a sentence in English, UTF-8,
/// that names the value and what is allowed. Never null; empty if no call has failed. A call that
/// succeeds leaves it as it is.
///
/// The text is the library's, and stays until this thread's next call that fails.
const char *h_error_message(void);

/// The name of a status as it is written in C, such as "H_TIMED_OUT"; for a number that is none,
/// "(no h_status)". The text is static.
const char *h_status_name(int32_t status);

/// The version of the library, such as "0.1.0". The text is static.
const char *h_version(void);

/// Makes a node. Its settings are those of the environment (HAMLYN_*), and in their place the
/// `count` ones of `settings`, which may be null if `count` is 0. To be freed with h_node_free or
/// h_close.
///
/// In a process that has threads already, the first node takes some 20 ms.
///
/// Errors: H_INVALID, a setting that does not exist or is not allowed; H_SYSTEM. Nothing is left
/// behind.
h_status h_node_new(const h_setting_t *settings, size_t count, h_node_t **node);

/// Frees a node without waiting: messages that are still queued do not leave, and their number is
/// lost; see h_close. Every peer is told goodbye, except those for which messages waited. End
/// points made from the node go on working until they are freed. Null is allowed.
///
/// No other thread may be in a call with this node, nor make one afterwards. Pointers into its
/// areas are no longer valid.
void h_node_free(h_node_t *node);

/// Closes a node: queued messages leave first, for at most `timeout_ns`; then the node is freed as
/// by h_node_free, whatever is returned. `unsent`, which may be null, gets how many messages did
/// not leave.
///
/// Errors: H_TIMED_OUT, some did not leave; H_FORKED. `unsent` is written in both cases.
h_status h_close(h_node_t *node, int64_t timeout_ns, size_t *unsent);

/// Waits until every queued message has left, at most `timeout_ns`, taking in what arrives.
///
/// Errors: H_TIMED_OUT, the messages stay queued; H_FORKED.
h_status h_flush(h_node_t *node, int64_t timeout_ns);

/// The name that tickets for this node carry.
h_status h_node_id(h_node_t *node, uint64_t *id);

/// Starts the progress thread, unless it runs: it makes the node's calls, so that bytes land and
/// queued messages leave while the program does something else.
///
/// Errors: H_SYSTEM, no thread can be had.
h_status h_start_progress(h_node_t *node);

/// Stops the progress thread and waits for it.
h_status h_stop_progress(h_node_t *node);

/// Tells the node that the program lives: packets are not discarded for another `watchdog_ms`.
/// Only where the setting is not 0 and a progress thread runs. Whatever receives or waits says so,
/// too: this is for a program that is busy with something else.
h_status h_reset_watchdog(h_node_t *node);

/// Accepts packets: the state of a new node.
h_status h_enable(h_node_t *node);

/// Takes packets and discards them, counted, until h_enable.
h_status h_disable(h_node_t *node);

/// Every counter of the node. `count` gets how many there are; if that is more than `capacity`,
/// only so many are written and H_TOO_LONG is returned. `counters` may be null if `capacity` is 0.
h_status h_counters(h_node_t *node, h_counter_t *counters, size_t capacity, size_t *count);

/// The value of one counter, by its name.
///
/// Errors: H_NO_SUCH, no counter has this name.
h_status h_counter(h_node_t *node, const char *name, uint64_t *value);

/// Where other hosts connect: the setting `listen`, with the port that the system chose where that
/// was 0, such as 127.0.0.1:7000. Copied to `buffer` with a zero byte behind it, empty if nothing
/// listens; `length`, which may be null, gets the bytes before that.
///
/// Errors: H_TOO_LONG, `length` is written.
h_status h_listens_at(h_node_t *node, char *buffer, size_t capacity, size_t *length);

/// What was done or is missing because of this system or its limits: sentences, one to a line,
/// often none. Copied to `buffer` with a zero byte behind it; `length`, which may be null, gets
/// the bytes before that.
///
/// Errors: H_TOO_LONG, `length` is written.
h_status h_notes(h_node_t *node, char *buffer, size_t capacity, size_t *length);

/// Makes a message area of `bytes` zero bytes, beginning on a page. It lives until h_area_free,
/// or as long as the node.
///
/// Errors: H_INVALID, 0 bytes; H_LIMIT, more than there is, or may be; H_SYSTEM.
h_status h_area_new(h_node_t *node, size_t bytes, h_area_t *area);

/// Makes a message area over pages at an address of the application's own, which it may protect with
/// mprotect at any time: messages are deposited through a second view, the library's, so no deposit
/// causes a fault, and a handler of SIGSEGV sees the application's own accesses alone.
///
/// `address` and `bytes` are multiples of the page size, and every page is mapped already, however it
/// is protected. The pages are *replaced*, as by mmap with MAP_FIXED, by shared ones: zero, readable and
/// writable; what was in them is lost. They are the application's as those before were: it may protect
/// them, make holes in them (MADV_REMOVE: zeros, in both views) and unmap them. A forked child has
/// nothing there (MADV_DONTFORK). After h_area_free, or when the node has gone, they stay as they are,
/// with their bytes, until the application unmaps them; only the library's view ends.
///
/// What h_area_data says of an area's bytes holds for these, too, at whichever address: no thread writes
/// them while the library may read or write them. h_area_data gives the library's address of them.
///
/// Errors: H_INVALID, 0 bytes, not whole pages, or pages that are not mapped; H_LIMIT, after which the
/// pages are replaced, and no area; H_SYSTEM. Unless h_error_message says otherwise, the pages are as
/// they were.
h_status h_area_over(h_node_t *node,
                     void *address,
                     size_t bytes,
                     h_area_t *area);

/// Makes a message area of `bytes` bytes from `offset` on, a multiple of the page size, of a memory file
/// that the application has mapped, or will, wherever it likes, and may protect with mprotect at any
/// time; see h_area_over. The library makes a view of its own, and does not keep the descriptor.
///
/// The file is one of memfd_create with MFD_ALLOW_SEALING, in ordinary pages, open for reading and
/// writing, sealed with F_SEAL_SHRINK (a file that can be cut short would kill the process at the next
/// deposit), and not against writing. No other process writes these bytes while the area exists: memory
/// that another may write is an aperture. The application's mappings are in its forked children, too,
/// unless it says MADV_DONTFORK.
///
/// Errors: H_INVALID, the descriptor is not such a file, or the bytes are not inside; H_LIMIT;
/// H_SYSTEM. Then nothing was done.
h_status h_area_of_file(h_node_t *node,
                        int descriptor,
                        uint64_t offset,
                        size_t bytes,
                        h_area_t *area);

/// Gives an area's memory back. Pointers into it are no longer valid. (Of h_area_over and
/// h_area_of_file, the library's view ends; the application's stays.)
///
/// Errors: H_IN_USE, slots name it; H_NO_SUCH. Then nothing was done.
h_status h_area_free(h_node_t *node, h_area_t area);

/// Where an area's bytes are, and how many; `bytes` may be null. The address stays until the area
/// is freed or the node goes.
///
/// The bytes change when a message is deposited: in calls of h_recv, h_recv_block, h_send_msg,
/// h_poll and the like, whichever thread makes them, the progress thread included. Bytes for which
/// no message can be on its way stand still: those of a one-shot entry after its notification, or
/// those that no ticket names, or all while no thread calls. Reading others meanwhile is a data
/// race; h_area_read and h_area_write copy while no message lands.
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

/// The index that tickets name the slot with, and events that concern one.
uint32_t h_slot_index(h_slot_t slot);

/// Gives a slot a new key: every ticket made before is worthless at once, also for packets on
/// their way. The keys of paranoid entries are changed by h_arm_limits and h_close_entry.
h_status h_revoke(h_node_t *node, h_slot_t slot);

/// Arms a metadata entry of a normal slot for the next message: what it has counted becomes zero.
/// If the sender of an unfinished message may still be sending, h_revoke the key first.
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

/// The user metadata of the message that an entry received last: up to H_METADATA_MAX bytes,
/// copied to `buffer`; `length`, which may be null, gets how many.
///
/// Errors: H_TOO_LONG, `length` is written; H_NO_SUCH.
h_status h_metadata(h_node_t *node,
                    h_slot_t slot,
                    uint32_t index,
                    void *buffer,
                    size_t capacity,
                    size_t *length);

/// Makes a send buffer area of `bytes` zero bytes, to gather messages from with h_post_send; up
/// to 8 of them. `tag` gets its name.
///
/// Errors: H_LIMIT; H_INVALID, 0 bytes or no tag left; H_SYSTEM.
h_status h_send_buffer_new(h_node_t *node, size_t bytes, uint8_t *tag);

/// Makes a send buffer area of pages at an address of the application's own, which it may protect at
/// any time; the pages are replaced, and afterwards stay, as h_area_over says.
///
/// Errors: as for h_area_over, and H_INVALID, no tag left.
h_status h_send_buffer_over(h_node_t *node,
                            void *address,
                            size_t bytes,
                            uint8_t *tag);

/// Makes a send buffer area of bytes of a memory file, which may be those of a message area; see
/// h_area_of_file.
///
/// Errors: as for h_area_of_file, and H_INVALID, no tag left. Then nothing was done.
h_status h_send_buffer_of_file(h_node_t *node,
                               int descriptor,
                               uint64_t offset,
                               size_t bytes,
                               uint8_t *tag);

/// Gives a send buffer area back.
///
/// Errors: H_INVALID, a queued message needs it, or there is none; then nothing was done.
h_status h_send_buffer_free(h_node_t *node, uint8_t tag);

/// Copies `length` bytes from `from` to `offset` of a send buffer area. What a queued message
/// still needs is sent as it is when its packet leaves; see h_is_reusable.
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

/// Checks that bytes are a ticket's, and says how many data bytes it allows. Whether it is valid
/// only the receiver knows, when a packet arrives. `capacity` may be null.
///
/// Errors: H_INVALID, no ticket.
h_status h_ticket_capacity(const h_ticket_t *ticket, uint64_t *capacity);

/// The node that a ticket leads to, as h_node_id says it there.
h_status h_ticket_destination(const h_ticket_t *ticket, uint64_t *id);

/// The same right for the bytes from `offset` on, counted from the ticket's first; `at` may be
/// `ticket`.
///
/// Errors: H_INVALID, no ticket, or outside it.
h_status h_ticket_at(const h_ticket_t *ticket, uint64_t offset, h_ticket_t *at);

/// The same right without a notification: the data moves and nobody is told. `silent` may be
/// `ticket`.
///
/// Errors: H_INVALID, no ticket.
h_status h_ticket_silent(const h_ticket_t *ticket, h_ticket_t *silent);

/// Divides a ticket's bytes and its share of the packet counter evenly among `count` parts, up
/// to 2^20, for helpers that together send one message: it is announced when all have sent theirs,
/// each once. The ticket itself must no longer be used.
///
/// Errors: H_INVALID, no ticket, or one that cannot be divided so.
h_status h_ticket_split(const h_ticket_t *ticket, h_ticket_t *parts, size_t count);

/// Offers a service: whoever may connect is accepted, also while the program makes no calls, and
/// gets `greeting`, often a ticket. `access` is an h_access; `gid` is used for H_ACCESS_GROUP
/// only. A node may offer several.
///
/// Errors: H_INVALID, no name of a service; H_IN_USE; H_REFUSED; H_TOO_LONG; H_SYSTEM. No name was
/// taken.
h_status h_serve(h_node_t *node,
                 const char *name,
                 uint32_t access,
                 uint32_t gid,
                 const void *greeting,
                 size_t greeting_length);

/// Offers a service for which the program decides who may connect: each one who wants to is an
/// event, to be answered with h_accept or h_refuse. Otherwise as h_serve.
h_status h_serve_asking(h_node_t *node, const char *name, uint32_t access, uint32_t gid);

/// No longer offers a service; links made through it stay.
///
/// Errors: H_NO_SUCH, it was not offered.
h_status h_stop_serving(h_node_t *node, const char *name);

/// Accepts a request to connect; the other side gets `greeting`. The link appears as an event of
/// kind H_EVENT_CONNECTED.
///
/// Errors: H_NO_SUCH, the request was answered or withdrawn; H_TOO_LONG; H_LIMIT, the request was
/// refused because there is no room.
h_status h_accept(h_node_t *node, uint64_t request, const void *greeting, size_t greeting_length);

/// Refuses a request to connect; the other side is told `reason`.
///
/// Errors: H_NO_SUCH, the request was answered or withdrawn.
h_status h_refuse(h_node_t *node, uint64_t request, const char *reason);

/// Connects to the service "[user@]name", waiting at most `timeout_ns` for everything: for somebody
/// to serve the name, too, unless the node's setting wait_for_names is off. `greeting` reaches the
/// server before it decides; what it answers is had with h_greeting.
///
/// Errors: H_INVALID, no name of a service; H_NOT_FOUND; H_REFUSED; H_VERSION; H_LIMIT; H_TIMED_OUT;
/// H_CLOSED; H_MISBEHAVED; H_TOO_LONG; H_SYSTEM; of another host H_NO_HOST, H_UNREACHABLE, H_UNTRUSTED,
/// H_SECRET. Nothing is left of the attempt.
h_status h_connect(h_node_t *node,
                   const char *name,
                   const void *greeting,
                   size_t greeting_length,
                   int64_t timeout_ns,
                   h_link_t *link);

/// What the other side sent along when the link was made, often a ticket; also of the links that
/// ended last. Up to H_GREETING_BYTES_MAX bytes are copied to `buffer`; `length`, which may be
/// null, gets how many.
///
/// Errors: H_TOO_LONG, `length` is written; H_NO_SUCH.
h_status h_greeting(h_node_t *node, h_link_t link, void *buffer, size_t capacity, size_t *length);

/// Who is at the other end of a link; also of the links that ended last.
///
/// Errors: H_NO_SUCH.
h_status h_peer(h_node_t *node, h_link_t link, h_peer_t *peer);

/// Which path a link takes, and why: a text, copied to `buffer` with a zero byte behind it;
/// `length`, which may be null, gets the bytes before that.
///
/// Errors: H_TOO_LONG, `length` is written; H_NO_SUCH.
h_status h_explain(h_node_t *node, h_link_t link, char *buffer, size_t capacity, size_t *length);

/// Ends one link. `unsent`, which may be null, gets how many queued messages have not left and
/// are lost.
///
/// Errors: H_NO_SUCH.
h_status h_disconnect(h_node_t *node, h_link_t link, size_t *unsent);

/// The next event of the node, waiting for it at most `timeout_ns`; 0: not at all.
///
/// Errors: H_NOTHING, none waits and the time limit was 0; H_TIMED_OUT.
h_status h_next_event(h_node_t *node, int64_t timeout_ns, h_event_t *event);

/// A descriptor for epoll, poll and an event loop, readable when something may have come after
/// h_prepare_to_wait said that the program may wait, also if another thread took it from its link.
/// It stays the node's: do not close it, nor read from it. For one event loop.
///
/// Errors: H_SYSTEM, no descriptor can be had; H_FORKED.
h_status h_fd(h_node_t *node, int32_t *fd);

/// To be called before waiting on h_fd, when every queue, end point and h_next_event have been
/// found empty. `may_wait` becomes true: nothing has come since, and whatever comes makes the
/// descriptor readable; or false: something may have come since the last call, in whichever thread:
/// look at all of them again. So it is false the first time.
///
/// Errors: as h_fd.
h_status h_prepare_to_wait(h_node_t *node, bool *may_wait);

/// Sends one message: `length` bytes of `data` land at the ticket's first byte, and
/// `metadata_length` bytes of `metadata`, up to H_METADATA_MAX, in the metadata entry. Both have
/// been copied when the call returns. Waits for room at most `timeout_ns`, taking in what arrives
/// meanwhile, so that two that send to each other never deadlock. `handle` may be null.
///
/// Messages leave in order; packets are counted, not sequenced, so that a metadata entry has one
/// message on its way at a time, unless each is a single packet.
///
/// Errors: H_UNREACHABLE, no link leads to the ticket's node; H_TOO_LONG, for the ticket;
/// H_CLOSED, the other side went while this was sent; H_TIMED_OUT, nothing has left; H_INCOMPLETE,
/// part of a long message has left, and the receiver arms the entry again; H_INVALID; H_FORKED.
/// Whether the ticket is still valid is not told: refusals reveal nothing.
h_status h_send_msg(h_node_t *node,
                    const h_ticket_t *ticket,
                    const void *data,
                    size_t length,
                    const void *metadata,
                    size_t metadata_length,
                    int64_t timeout_ns,
                    h_handle_t *handle);

/// h_send_msg without waiting: a message that a link cannot take now is H_FULL, and one that it
/// could never take at once H_TOO_LONG. A message of up to 256 bytes is queued while the work
/// queue has room.
h_status h_try_send_msg(h_node_t *node,
                        const h_ticket_t *ticket,
                        const void *data,
                        size_t length,
                        const void *metadata,
                        size_t metadata_length,
                        h_handle_t *handle);

/// Sends one packet in fast mode: `word` arrives in the notification itself. `ticket` is from
/// h_fast_ticket of the receiver. Waits for room at most `timeout_ns`; 0: not at all, and H_FULL
/// says that there is none. `handle` may be null.
///
/// Errors: as h_send_msg; H_INVALID, too long for one packet, or no ticket of fast mode.
h_status h_send_fast(h_node_t *node,
                     const h_ticket_t *ticket,
                     const void *data,
                     size_t length,
                     uint32_t word,
                     int64_t timeout_ns,
                     h_handle_t *handle);

/// Queues a message that is gathered from up to 16 pieces of send buffer areas. It leaves in this
/// and later calls, or in h_flush; the pieces are needed until h_is_reusable. `handle` may be null.
///
/// Errors: H_FULL, the work queue; H_INVALID, a piece outside its area; otherwise as h_send_msg.
h_status h_post_send(h_node_t *node,
                     const h_ticket_t *ticket,
                     const h_piece_t *pieces,
                     size_t count,
                     const void *metadata,
                     size_t metadata_length,
                     h_handle_t *handle);

/// Whether all bytes of a message have been copied out, so that its buffer may be used again; not
/// whether it has arrived.
h_status h_is_reusable(h_node_t *node, const h_handle_t *handle, bool *reusable);

/// The next notification of a queue, if a message has arrived; takes in what waits in the links
/// if there is none.
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

/// One turn: takes in what has arrived, a bounded number of packets from each link, and gives
/// queued packets to links that have room. `taken`, which may be null, gets how many packets were
/// taken, refused ones included; 0 if another thread is taking a turn.
h_status h_poll(h_node_t *node, size_t *taken);

/// Reads a seed that anybody may have written. Whether it is genuine is decided by its receiver,
/// when a sender is grown.
///
/// Errors: H_SEED, cut off, changed on the way, of another version, or none at all.
h_status h_seed_from_bytes(const void *data, size_t length, h_seed_t *seed);

/// Reads a seed from text, as h_seed_to_text makes it.
///
/// Errors: H_SEED.
h_status h_seed_from_text(const char *data, h_seed_t *seed);

/// The same seed for bearers on other hosts, who find the receiver's host at `at`, a text such as
/// "a.example:7000"; its node has to listen there (the setting listen). `made` may be `seed`.
///
/// Errors: H_SEED, it is none; H_INVALID; H_TOO_LONG.
h_status h_seed_at_host(const h_seed_t *seed, const char *at, h_seed_t *made);

/// A seed as text of hexadecimal digits, with a zero byte behind it; H_SEED_TEXT_BYTES are always
/// enough. `length`, which may be null, gets the bytes before that.
///
/// Errors: H_SEED, it is none; H_TOO_LONG, `length` is written.
h_status h_seed_to_text(const h_seed_t *seed, char *buffer, size_t capacity, size_t *length);

/// What the receiver of a seed speaks: an h_kind.
///
/// Errors: H_SEED, it is none.
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
/// Errors: H_INVALID, no name of a service; H_IN_USE; H_REFUSED; H_SYSTEM. No name was
/// taken.
h_status h_tagged_receiver_serve(h_tagged_receiver_t *receiver,
                                 const char *name,
                                 uint32_t access,
                                 uint32_t gid);

/// Nobody finds this receiver any more: its names are free at once for
/// another, its seeds are worthless, and who is connected stays so.
h_status h_tagged_receiver_stop_serving(h_tagged_receiver_t *receiver);

/// Asks `admit` about each process that wants to grow a sender; null: all
/// who may connect are let in again. See h_admission_t.
h_status h_tagged_receiver_set_admission(h_tagged_receiver_t *receiver,
                                         h_admission_t admit,
                                         void *context);

/// Offers this receiver, which is of the job's node, to the other ranks.
/// They wait until it is offered. One of a kind has a name; all names are free again when it is
/// freed.
///
/// Errors: H_INVALID, the name is none, or it is not of h_job_node; H_IN_USE, this rank offers
/// another of the same kind under it.
h_status h_tagged_receiver_offer(h_tagged_receiver_t *receiver, h_job_t *job, const char *name);

/// The next tag, in the order of arrival, waiting at most `timeout_ns`. The data that belongs to it
/// lies in the area by then.
///
/// Errors: H_NOTHING, none is there and the time limit was 0; H_TIMED_OUT; H_FORKED; H_SYSTEM.
h_status h_tagged_get_tag(h_tagged_receiver_t *receiver, int64_t timeout_ns, h_tag_t *tag);

/// The next write with this tag; others that come meanwhile are kept for later calls, in their
/// order. Otherwise as h_tagged_get_tag.
///
/// Errors: also H_MISBEHAVED, a sender sent more tags than its credit and was sent away.
h_status h_tagged_get_specific_tag(h_tagged_receiver_t *receiver,
                                   uint32_t wanted,
                                   int64_t timeout_ns,
                                   h_tag_t *tag);

/// Copies `length` bytes from `offset` of the area to `to`, while nothing arrives.
///
/// Errors: H_INVALID, outside the area.
h_status h_tagged_read(h_tagged_receiver_t *receiver, size_t offset, void *to, size_t length);

/// Where the area's bytes are, and how many; `bytes` may be null. The address stays until the
/// receiver is freed. The bytes change when a write arrives: in calls with the node or its end
/// points, whichever thread makes them. Those that the senders will not write again until they are
/// told stand still.
h_status h_tagged_data(h_tagged_receiver_t *receiver, const void **data, size_t *bytes);

/// How many senders have a connection now.
h_status h_tagged_receiver_senders(h_tagged_receiver_t *receiver, size_t *count);

/// Closes a receiver: what the node has queued leaves first, for at most
/// `timeout_ns`. Then it is freed, whatever is returned.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED.
h_status h_tagged_receiver_close(h_tagged_receiver_t *receiver, int64_t timeout_ns);

/// Frees a receiver without waiting. Null is allowed.
/// Its senders are told goodbye; its seeds and names are worthless; the area's memory goes.
void h_tagged_receiver_free(h_tagged_receiver_t *receiver);

/// Grows a sender from a seed, waiting at most `timeout_ns` for the receiver's
/// answer. To be freed with h_tagged_sender_close or
/// h_tagged_sender_free.
///
/// Errors: H_SEED, no seed, or one of another protocol; H_REFUSED, the seed is old or forged, or the
/// receiver's owner lets this process not in; H_LIMIT, the receiver has as many as it may,
/// or its process has, or this one; H_NOT_FOUND, its process is gone; H_CLOSED, it went away
/// meanwhile; H_TIMED_OUT; H_INVALID, an argument or a setting; H_VERSION; H_MISBEHAVED; H_SYSTEM; of
/// another host H_NO_HOST, H_UNREACHABLE, H_UNTRUSTED, H_SECRET. Nothing is left of the attempt.
h_status h_tagged_sender_grow(h_node_t *node,
                              const h_seed_t *seed,
                              int64_t timeout_ns,
                              h_tagged_sender_t **sender);

/// Grows a sender of what is served as "[user@]name". A name that nobody serves
/// yet, or whose process is ending, is waited for within the time limit, unless the setting
/// wait_for_names is off; otherwise as h_tagged_sender_grow.
///
/// Errors: as h_tagged_sender_grow; H_NOT_FOUND, nobody has served the name, or there is no
/// such user; H_INVALID, no name of a service; H_UNREACHABLE, of another host.
h_status h_tagged_sender_connect(h_node_t *node,
                                 const char *name,
                                 int64_t timeout_ns,
                                 h_tagged_sender_t **sender);

/// Grows a sender of what the receiver's rank offers under `name`: until it does, and
/// while too many ranks of other hosts ask it at once, this waits, at most `timeout_ns`; otherwise
/// as h_tagged_sender_grow.
///
/// Errors: H_INVALID, there is no such rank, or the name is none; H_TIMED_OUT, nothing was offered;
/// H_UNREACHABLE; H_LIMIT; H_CLOSED. Nothing is left of the attempt.
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

/// Who is at the other end, as the kernel says.
h_status h_tagged_sender_peer(h_tagged_sender_t *sender, h_peer_t *peer);

/// Which path is taken, and why: a text, copied to `buffer` with a zero byte behind it;
/// `length`, which may be null, gets the bytes before that.
///
/// Errors: H_TOO_LONG, `length` is written.
h_status h_tagged_sender_explain(h_tagged_sender_t *sender,
                                 char *buffer,
                                 size_t capacity,
                                 size_t *length);

/// Closes a sender: what was sent leaves first, for at most
/// `timeout_ns`. Then it is freed, whatever is returned.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED.
h_status h_tagged_sender_close(h_tagged_sender_t *sender, int64_t timeout_ns);

/// Frees a sender without waiting. Null is allowed.
/// What it sent is with the receiver already.
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
/// Errors: H_INVALID, no name of a service; H_IN_USE; H_REFUSED; H_SYSTEM. No name was
/// taken.
h_status h_datagram_receiver_serve(h_datagram_receiver_t *receiver,
                                   const char *name,
                                   uint32_t access,
                                   uint32_t gid);

/// Nobody finds this receiver any more: its names are free at once for
/// another, its seeds are worthless, and who is connected stays so.
h_status h_datagram_receiver_stop_serving(h_datagram_receiver_t *receiver);

/// Asks `admit` about each process that wants to grow a sender; null: all
/// who may connect are let in again. See h_admission_t.
h_status h_datagram_receiver_set_admission(h_datagram_receiver_t *receiver,
                                           h_admission_t admit,
                                           void *context);

/// Offers this receiver, which is of the job's node, to the other ranks.
/// They wait until it is offered. One of a kind has a name; all names are free again when it is
/// freed.
///
/// Errors: H_INVALID, the name is none, or it is not of h_job_node; H_IN_USE, this rank offers
/// another of the same kind under it.
h_status h_datagram_receiver_offer(h_datagram_receiver_t *receiver, h_job_t *job, const char *name);

/// The next datagram, waiting at most `timeout_ns`. After it the receiver is not ready, and the
/// datagram's bytes stand still, until h_datagram_ready.
///
/// Errors: H_NOTHING, none is there and the time limit was 0; H_TIMED_OUT; H_MISBEHAVED, a sender
/// broke the rules and was sent away; nothing was received, and the receiver is ready; H_FORKED;
/// H_SYSTEM.
h_status h_datagram_receive(h_datagram_receiver_t *receiver,
                            int64_t timeout_ns,
                            h_datagram_t *datagram);

/// Copies the bytes of the datagram that was received last to `buffer`; `length`, which may be
/// null, gets how many they are.
///
/// Errors: H_TOO_LONG, `length` is written; H_STATE, none was received; H_INVALID, the receiver was
/// made ready since.
h_status h_datagram_read(h_datagram_receiver_t *receiver,
                         void *buffer,
                         size_t capacity,
                         size_t *length);

/// Where the bytes of the datagram that was received last are, and how many; `length` may be null.
/// They stand still until h_datagram_ready, or until the receiver is freed.
///
/// Errors: as h_datagram_read.
h_status h_datagram_data(h_datagram_receiver_t *receiver, const void **data, size_t *length);

/// Answers the datagram that was received last, with the ticket that came with it, over the link
/// over which it came. Waits at most `timeout_ns` for room. Whether the other side was ready is
/// not known.
///
/// Errors: H_STATE, none was received, or it wants no answer; H_TOO_LONG; H_CLOSED, H_DIED, its
/// sender is gone; H_FULL, H_TIMED_OUT, nothing was sent; H_CUT_OFF.
h_status h_datagram_reply(h_datagram_receiver_t *receiver,
                          const void *data,
                          size_t length,
                          int64_t timeout_ns);

/// Takes datagrams again: the bytes of the one before may change from now on. The tickets that are
/// out are good again.
h_status h_datagram_ready(h_datagram_receiver_t *receiver);

/// h_datagram_ready with a new key: every ticket that is out is worthless from now on, and whoever
/// shall send needs a new one, or grows another sender. A datagram that was not received is lost.
h_status h_datagram_ready_anew(h_datagram_receiver_t *receiver);

/// The right to send one datagram to this receiver whenever it is ready; to be given along with a
/// datagram, for the answer.
h_status h_datagram_reply_ticket(h_datagram_receiver_t *receiver, h_ticket_t *ticket);

/// Closes a receiver: what the node has queued leaves first, for at most
/// `timeout_ns`. Then it is freed, whatever is returned.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED.
h_status h_datagram_receiver_close(h_datagram_receiver_t *receiver, int64_t timeout_ns);

/// Frees a receiver without waiting. Null is allowed.
/// Its senders are told goodbye; its seeds and names are worthless; the area's memory goes.
void h_datagram_receiver_free(h_datagram_receiver_t *receiver);

/// Grows a sender from a seed, waiting at most `timeout_ns` for the receiver's
/// answer. To be freed with h_datagram_sender_close or
/// h_datagram_sender_free.
///
/// Errors: H_SEED, no seed, or one of another protocol; H_REFUSED, the seed is old or forged, or the
/// receiver's owner lets this process not in; H_LIMIT, the receiver has as many as it may,
/// or its process has, or this one; H_NOT_FOUND, its process is gone; H_CLOSED, it went away
/// meanwhile; H_TIMED_OUT; H_INVALID, an argument or a setting; H_VERSION; H_MISBEHAVED; H_SYSTEM; of
/// another host H_NO_HOST, H_UNREACHABLE, H_UNTRUSTED, H_SECRET. Nothing is left of the attempt.
h_status h_datagram_sender_grow(h_node_t *node,
                                const h_seed_t *seed,
                                int64_t timeout_ns,
                                h_datagram_sender_t **sender);

/// Grows a sender of what is served as "[user@]name". A name that nobody serves
/// yet, or whose process is ending, is waited for within the time limit, unless the setting
/// wait_for_names is off; otherwise as h_datagram_sender_grow.
///
/// Errors: as h_datagram_sender_grow; H_NOT_FOUND, nobody has served the name, or there is no
/// such user; H_INVALID, no name of a service; H_UNREACHABLE, of another host.
h_status h_datagram_sender_connect(h_node_t *node,
                                   const char *name,
                                   int64_t timeout_ns,
                                   h_datagram_sender_t **sender);

/// Grows a sender of what the receiver's rank offers under `name`: until it does, and
/// while too many ranks of other hosts ask it at once, this waits, at most `timeout_ns`; otherwise
/// as h_datagram_sender_grow.
///
/// Errors: H_INVALID, there is no such rank, or the name is none; H_TIMED_OUT, nothing was offered;
/// H_UNREACHABLE; H_LIMIT; H_CLOSED. Nothing is left of the attempt.
h_status h_datagram_sender_grow_from(h_job_t *job,
                                     uint32_t rank,
                                     const char *name,
                                     int64_t timeout_ns,
                                     h_datagram_sender_t **sender);

/// Sends `length` bytes of `data` to the receiver's area at `offset`, and with them a ticket for
/// the answer, from h_datagram_reply_ticket of a receiver of the same node, or null. Waits at most
/// `timeout_ns` for room. Whether the receiver was ready is not known.
///
/// Errors, nothing was sent: H_TOO_LONG; H_INVALID, outside the area, or a ticket of another node;
/// H_FULL, the time limit was 0; H_TIMED_OUT; H_CLOSED, H_DIED, the receiver is gone. H_CUT_OFF: part was sent, and the rest
/// leaves first in the next call.
h_status h_datagram_send(h_datagram_sender_t *sender,
                         uint64_t offset,
                         const void *data,
                         size_t length,
                         const h_ticket_t *reply,
                         int64_t timeout_ns);

/// The bytes of the receiver's area.
h_status h_datagram_capacity(h_datagram_sender_t *sender, uint64_t *bytes);

/// Who is at the other end, as the kernel says.
h_status h_datagram_sender_peer(h_datagram_sender_t *sender, h_peer_t *peer);

/// Which path is taken, and why: a text, copied to `buffer` with a zero byte behind it;
/// `length`, which may be null, gets the bytes before that.
///
/// Errors: H_TOO_LONG, `length` is written.
h_status h_datagram_sender_explain(h_datagram_sender_t *sender,
                                   char *buffer,
                                   size_t capacity,
                                   size_t *length);

/// Closes a sender: what was sent leaves first, for at most
/// `timeout_ns`. Then it is freed, whatever is returned.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED.
h_status h_datagram_sender_close(h_datagram_sender_t *sender, int64_t timeout_ns);

/// Frees a sender without waiting. Null is allowed.
/// What is still queued may be lost.
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
/// Errors: H_INVALID, no name of a service; H_IN_USE; H_REFUSED; H_SYSTEM. No name was
/// taken.
h_status h_stream_receiver_serve(h_stream_receiver_t *receiver,
                                 const char *name,
                                 uint32_t access,
                                 uint32_t gid);

/// Nobody finds this receiver any more: its names are free at once for
/// another, its seeds are worthless, and who is connected stays so.
h_status h_stream_receiver_stop_serving(h_stream_receiver_t *receiver);

/// Asks `admit` about each process that wants to grow the sender; null: all
/// who may connect are let in again. See h_admission_t.
h_status h_stream_receiver_set_admission(h_stream_receiver_t *receiver,
                                         h_admission_t admit,
                                         void *context);

/// Offers this receiver, which is of the job's node, to the other ranks.
/// They wait until it is offered. One of a kind has a name; all names are free again when it is
/// freed.
///
/// Errors: H_INVALID, the name is none, or it is not of h_job_node; H_IN_USE, this rank offers
/// another of the same kind under it.
h_status h_stream_receiver_offer(h_stream_receiver_t *receiver, h_job_t *job, const char *name);

/// The next record, in the order of sending, waiting at most `timeout_ns`. Its bytes are where they
/// arrived, and stand still until it is released.
///
/// Errors: H_NOTHING, none is there and the time limit was 0; H_TIMED_OUT; H_CLOSED, the sender has sent
/// everything, and all of it was received; H_DIED, H_HUNG_UP, it is gone without that, and what came was
/// received; H_MISBEHAVED; H_FORKED; H_SYSTEM.
h_status h_stream_receive(h_stream_receiver_t *receiver,
                          int64_t timeout_ns,
                          h_record_t *record);

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

/// Who sends, as the kernel says.
///
/// Errors: H_NOTHING, there is no sender yet.
h_status h_stream_receiver_peer(h_stream_receiver_t *receiver, h_peer_t *peer);

/// Which path is taken, and why: a text, copied to `buffer` with a zero byte behind it; `length`,
/// which may be null, gets the bytes before that.
///
/// Errors: H_TOO_LONG, `length` is written.
h_status h_stream_receiver_explain(h_stream_receiver_t *receiver,
                                   char *buffer,
                                   size_t capacity,
                                   size_t *length);

/// Closes a receiver: what the node has queued leaves first, for at most
/// `timeout_ns`. Then it is freed, whatever is returned.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED.
h_status h_stream_receiver_close(h_stream_receiver_t *receiver, int64_t timeout_ns);

/// Frees a receiver without waiting. Null is allowed.
/// Records that were not released are gone, and pointers to them no longer valid; the sender is
/// told.
void h_stream_receiver_free(h_stream_receiver_t *receiver);

/// Grows the sender from a seed, waiting at most `timeout_ns` for the receiver's
/// answer. To be freed with h_stream_sender_close or
/// h_stream_sender_free.
///
/// Errors: H_SEED, no seed, or one of another protocol; H_REFUSED, the seed is old or forged, or the
/// receiver's owner lets this process not in; H_LIMIT, the receiver has as many as it may,
/// or its process has, or this one; H_NOT_FOUND, its process is gone; H_CLOSED, it went away
/// meanwhile; H_TIMED_OUT; H_INVALID, an argument or a setting; H_VERSION; H_MISBEHAVED; H_SYSTEM; of
/// another host H_NO_HOST, H_UNREACHABLE, H_UNTRUSTED, H_SECRET. Nothing is left of the attempt.
h_status h_stream_sender_grow(h_node_t *node,
                              const h_seed_t *seed,
                              int64_t timeout_ns,
                              h_stream_sender_t **sender);

/// Grows the sender of what is served as "[user@]name". A name that nobody serves
/// yet, or whose process is ending, is waited for within the time limit, unless the setting
/// wait_for_names is off; otherwise as h_stream_sender_grow.
///
/// Errors: as h_stream_sender_grow; H_NOT_FOUND, nobody has served the name, or there is no
/// such user; H_INVALID, no name of a service; H_UNREACHABLE, of another host.
h_status h_stream_sender_connect(h_node_t *node,
                                 const char *name,
                                 int64_t timeout_ns,
                                 h_stream_sender_t **sender);

/// Grows the sender of what the receiver's rank offers under `name`: until it does, and
/// while too many ranks of other hosts ask it at once, this waits, at most `timeout_ns`; otherwise
/// as h_stream_sender_grow.
///
/// Errors: H_INVALID, there is no such rank, or the name is none; H_TIMED_OUT, nothing was offered;
/// H_UNREACHABLE; H_LIMIT; H_CLOSED. Nothing is left of the attempt.
h_status h_stream_sender_grow_from(h_job_t *job,
                                   uint32_t rank,
                                   const char *name,
                                   int64_t timeout_ns,
                                   h_stream_sender_t **sender);

/// Grows a sender from a seed, waiting at most `timeout_ns` for the receiver's
/// answer. To be freed with h_stream_sender_close or
/// h_stream_sender_free.
/// It writes long records straight into the receiver's memory, if the receiver has an aperture;
/// where that cannot be had, they go through the link, and h_stream_sender_explain says so.
///
/// Errors: H_SEED, no seed, or one of another protocol; H_REFUSED, the seed is old or forged, or the
/// receiver's owner lets this process not in; H_LIMIT, the receiver has as many as it may,
/// or its process has, or this one; H_NOT_FOUND, its process is gone; H_CLOSED, it went away
/// meanwhile; H_TIMED_OUT; H_INVALID, an argument or a setting; H_VERSION; H_MISBEHAVED; H_SYSTEM; of
/// another host H_NO_HOST, H_UNREACHABLE, H_UNTRUSTED, H_SECRET. Nothing is left of the attempt.
h_status h_stream_sender_grow_with_aperture(h_node_t *node,
                                            const h_seed_t *seed,
                                            int64_t timeout_ns,
                                            h_stream_sender_t **sender);

/// Grows a sender of what is served as "[user@]name". A name that nobody serves
/// yet, or whose process is ending, is waited for within the time limit, unless the setting
/// wait_for_names is off; otherwise as h_stream_sender_grow_with_aperture.
///
/// Errors: as h_stream_sender_grow_with_aperture; H_NOT_FOUND, nobody has served the name, or there is no
/// such user; H_INVALID, no name of a service; H_UNREACHABLE, of another host.
h_status h_stream_sender_connect_with_aperture(h_node_t *node,
                                               const char *name,
                                               int64_t timeout_ns,
                                               h_stream_sender_t **sender);

/// Grows a sender of what the receiver's rank offers under `name`: until it does, and
/// while too many ranks of other hosts ask it at once, this waits, at most `timeout_ns`; otherwise
/// as h_stream_sender_grow_with_aperture.
///
/// Errors: H_INVALID, there is no such rank, or the name is none; H_TIMED_OUT, nothing was offered;
/// H_UNREACHABLE; H_LIMIT; H_CLOSED. Nothing is left of the attempt.
h_status h_stream_sender_grow_from_with_aperture(h_job_t *job,
                                                 uint32_t rank,
                                                 const char *name,
                                                 int64_t timeout_ns,
                                                 h_stream_sender_t **sender);

/// Sends a record of `length` bytes, waiting at most `timeout_ns` for room. A small one leaves with
/// others, at the latest with h_stream_flush. A long one leaves at once; if the time is over when a part
/// of it has left, that is H_OK, too: it was taken, its rest leaves in later calls with this sender and
/// not otherwise, and only h_stream_flush, or h_stream_sender_close, says that it has.
///
/// Errors, nothing of this record was taken: H_TOO_LONG, see h_stream_bytes_max; H_FULL, the time
/// limit was 0; H_TIMED_OUT; H_CLOSED, H_DIED, the receiver is gone, which is found when a message
/// leaves; H_MISBEHAVED; H_STATE, a record is on loan (h_stream_loan).
h_status h_stream_send(h_stream_sender_t *sender,
                       const void *data,
                       size_t length,
                       int64_t timeout_ns);

/// A record of `length` bytes, to be written in place and sent with h_stream_loan_send: of a small one
/// that saves a copy. `data` gets where its bytes are; they are the caller's to write until it is sent
/// or freed, not to be touched afterwards, and before they are written they are zero, or of records that
/// this sender has sent. Waits at most `timeout_ns` for room where small records are to leave first.
///
/// A sender has one record on loan at a time, and until that is sent, or freed with h_stream_loan_free,
/// it sends and flushes nothing else (H_STATE). With the sender it is freed, too.
///
/// Errors, nothing is on loan: H_TOO_LONG, see h_stream_bytes_max; H_FULL, the time limit was 0;
/// H_TIMED_OUT; H_CLOSED, H_DIED, H_HUNG_UP, the receiver is gone; H_MISBEHAVED; H_STATE, one is on loan
/// already, and stays so, or the sender was grown with an aperture. Of small records that were to leave
/// first a part may have, and the rest leaves in later calls.
h_status h_stream_loan(h_stream_sender_t *sender,
                       size_t length,
                       int64_t timeout_ns,
                       void **data);

/// Sends the first `length` bytes of the record that is on loan, as h_stream_send does; there is none
/// afterwards, and the pointer to its bytes is no longer valid. On an error it is on loan as before, but for what `length` has cut off.
///
/// Errors: as h_stream_send; H_INVALID, `length` is more than the record has; H_STATE, none is on loan.
h_status h_stream_loan_send(h_stream_sender_t *sender,
                            size_t length,
                            int64_t timeout_ns);

/// The record that is on loan, if one is, will not be sent: nothing of it reaches anybody. Null is
/// allowed.
void h_stream_loan_free(h_stream_sender_t *sender);

/// Sends the small records that wait for others, waiting at most `timeout_ns` for room: when it
/// returns H_OK every record is on its way, and arrives also if this process ends.
///
/// Errors: as h_stream_send; what is left stays for a later call.
h_status h_stream_flush(h_stream_sender_t *sender, int64_t timeout_ns);

/// The longest record, in bytes.
h_status h_stream_bytes_max(h_stream_sender_t *sender, size_t *bytes_max);

/// Who is at the other end, as the kernel says.
h_status h_stream_sender_peer(h_stream_sender_t *sender, h_peer_t *peer);

/// Which path is taken, and why: a text, copied to `buffer` with a zero byte behind it;
/// `length`, which may be null, gets the bytes before that.
///
/// Errors: H_TOO_LONG, `length` is written.
h_status h_stream_sender_explain(h_stream_sender_t *sender,
                                 char *buffer,
                                 size_t capacity,
                                 size_t *length);

/// Sends what is left and tells the receiver that this was all, waiting at most `timeout_ns`. Then
/// the sender is freed, whatever is returned; who wants to try longer calls h_stream_flush first.
///
/// Errors: H_TIMED_OUT, some was left, and the receiver knows that something is missing; H_CLOSED,
/// H_DIED, the receiver is gone; H_FORKED.
h_status h_stream_sender_close(h_stream_sender_t *sender, int64_t timeout_ns);

/// Frees a sender, as where something failed: what can be sent without waiting is sent, and the
/// receiver is told H_HUNG_UP, that there may have been more. Whoever has sent all calls
/// h_stream_sender_close. Null is allowed.
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
/// Errors: H_INVALID, no name of a service; H_IN_USE; H_REFUSED; H_SYSTEM. No name was
/// taken.
h_status h_server_serve(h_server_t *server, const char *name, uint32_t access, uint32_t gid);

/// Nobody finds this server any more: its names are free at once for
/// another, its seeds are worthless, and who is connected stays so.
h_status h_server_stop_serving(h_server_t *server);

/// Asks `admit` about each process that wants to grow a client; null: all
/// who may connect are let in again. See h_admission_t.
h_status h_server_set_admission(h_server_t *server, h_admission_t admit, void *context);

/// Offers this server, which is of the job's node, to the other ranks.
/// They wait until it is offered. One of a kind has a name; all names are free again when it is
/// freed.
///
/// Errors: H_INVALID, the name is none, or it is not of h_job_node; H_IN_USE, this rank offers
/// another of the same kind under it.
h_status h_server_offer(h_server_t *server, h_job_t *job, const char *name);

/// The next request, waiting at most `timeout_ns`. Any number of threads may wait.
///
/// Errors: H_NOTHING, none is there and the time limit was 0; H_TIMED_OUT; H_CLOSED, the server drains,
/// and nothing more will come; H_FORKED; H_SYSTEM.
h_status h_server_receive(h_server_t *server,
                          int64_t timeout_ns,
                          h_request_t **request);

/// The bytes of a request, and how many; `length` may be null. They stand still until the request
/// is replied to or freed.
h_status h_request_data(const h_request_t *request, const void **data, size_t *length);

/// Who calls, as the kernel says.
///
/// Errors: H_NO_SUCH, it is long gone.
h_status h_request_peer(const h_request_t *request, h_peer_t *peer);

/// Replies to a request, waiting at most `timeout_ns` for room, and, where the reply is long, for
/// the client to make room for it and for the bytes to leave. The request is freed, whatever is
/// returned.
///
/// With H_FOREVER a reply of at most the client's `reply_bytes` waits for nobody: it is kept, and
/// leaves in a later call. A longer one waits until the client takes it, for ever if it does not;
/// and the client chooses `reply_bytes`. With any other limit both wait at most so long. An error is
/// that client's end alone: the others can be served on.
///
/// Errors, the client is told that no reply will come: H_TIMED_OUT; H_TOO_LONG, for the client;
/// H_CLOSED, H_DIED, the client is gone. H_INVALID, null; then the request is not freed.
h_status h_request_reply(h_request_t *request,
                         const void *data,
                         size_t length,
                         int64_t timeout_ns);

/// Answers that a request has failed, waiting at most `timeout_ns` for room: the client gets
/// H_APPLICATION, with this code, which is the application's own, and this text. The request is
/// freed, whatever is returned.
///
/// Errors, the client is told that no reply will come: H_TIMED_OUT; H_TOO_LONG, a text of more than
/// 1,024 bytes, or than the client's `reply_bytes` less 8; H_CLOSED, H_DIED, the client is gone.
/// H_INVALID, null, or no UTF-8; then the request is not freed.
h_status h_request_fail(h_request_t *request,
                        uint32_t code,
                        const char *reason,
                        int64_t timeout_ns);

/// How long its caller goes on waiting, in nanoseconds, if it said so with h_client_call_within;
/// H_FOREVER if it did not.
h_status h_request_time_left(const h_request_t *request, int64_t *left_ns);

/// Whether nobody waits for the reply any more: the caller has given up, its client is gone, or its
/// time is over. Takes a turn. A reply is allowed as ever, and is dropped at the client.
///
/// Errors: H_FORKED.
h_status h_request_is_cancelled(const h_request_t *request, bool *is_cancelled);

/// Frees a request without a reply: the client is told that none will come. Null is allowed.
void h_request_free(h_request_t *request);

/// How many clients are connected, and how many were sent away because they broke the rules;
/// either pointer may be null.
h_status h_server_clients(h_server_t *server, size_t *connected, uint64_t *misbehaved);

/// Takes no new requests, waits at most `timeout_ns` until those that are here have been received and
/// replied to, and closes all connections; `unanswered`, which may be null, is how many had no reply by
/// then: 0, if all is well.
///
/// Its names are free for another server from the beginning, and whoever calls is told H_DRAINING.
/// Receiving goes on, in other threads, and fails with H_CLOSED when nothing is left to be received.
/// Afterwards nobody is connected, and what is left of the server is to be freed.
///
/// Errors: H_FORKED; H_SYSTEM. It takes nothing new then, and its connections are as they were.
h_status h_server_drain(h_server_t *server,
                        int64_t timeout_ns,
                        size_t *unanswered);

/// Begins to drain, and does not wait: for a program of one thread, such as an event loop. It goes on
/// receiving until h_server_receive says H_CLOSED, replies to what it still holds, and then calls
/// h_server_drain, which has nothing left to wait for. A client that has announced a long request can
/// keep it from that: whoever must end goes on for a time of its own, and then calls h_server_drain with
/// a limit of 0.
///
/// Errors: H_FORKED.
h_status h_server_begin_drain(h_server_t *server);

/// Closes a server: what the node has queued leaves first, for at most
/// `timeout_ns`. Then it is freed, whatever is returned.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED.
h_status h_server_close(h_server_t *server, int64_t timeout_ns);

/// Frees a server without waiting. Null is allowed.
/// Its names are free at once. Its clients are told goodbye once the requests that were received are freed, too.
void h_server_free(h_server_t *server);

/// Grows a client from a seed, waiting at most `timeout_ns` for the server's
/// answer. To be freed with h_client_close or
/// h_client_free.
/// `config` may be null.
///
/// Errors: H_SEED, no seed, or one of another protocol; H_REFUSED, the seed is old or forged, or the
/// server's owner lets this process not in; H_LIMIT, the server has as many as it may,
/// or its process has, or this one; H_NOT_FOUND, its process is gone; H_CLOSED, it went away
/// meanwhile; H_TIMED_OUT; H_INVALID, an argument or a setting; H_VERSION; H_MISBEHAVED; H_SYSTEM; of
/// another host H_NO_HOST, H_UNREACHABLE, H_UNTRUSTED, H_SECRET. Nothing is left of the attempt.
h_status h_client_grow(h_node_t *node,
                       const h_seed_t *seed,
                       const h_client_config_t *config,
                       int64_t timeout_ns,
                       h_client_t **client);

/// Grows a client of what is served as "[user@]name". A name that nobody serves
/// yet, or whose process is ending, is waited for within the time limit, unless the setting
/// wait_for_names is off; otherwise as h_client_grow.
///
/// Errors: as h_client_grow; H_NOT_FOUND, nobody has served the name, or there is no
/// such user; H_INVALID, no name of a service; H_UNREACHABLE, of another host.
h_status h_client_connect(h_node_t *node,
                          const char *name,
                          const h_client_config_t *config,
                          int64_t timeout_ns,
                          h_client_t **client);

/// Grows a client of what the server's rank offers under `name`: until it does, and
/// while too many ranks of other hosts ask it at once, this waits, at most `timeout_ns`; otherwise
/// as h_client_grow.
///
/// Errors: H_INVALID, there is no such rank, or the name is none; H_TIMED_OUT, nothing was offered;
/// H_UNREACHABLE; H_LIMIT; H_CLOSED. Nothing is left of the attempt.
h_status h_client_grow_from(h_job_t *job,
                            uint32_t rank,
                            const char *name,
                            const h_client_config_t *config,
                            int64_t timeout_ns,
                            h_client_t **client);

/// The code of this thread's last H_APPLICATION, as the server's program gave it to h_request_fail;
/// 0 before there was one.
uint32_t h_error_code(void);

/// Sends a request and waits for the reply, at most `timeout_ns` in all. The reply is copied to
/// `reply`; `reply_length`, which may be null, gets how many bytes it has. Where the reply's
/// length is not known, use h_client_start and h_client_finish.
///
/// Errors: H_TIMED_OUT, the server may still be at work, and its reply will be dropped; H_REFUSED,
/// the server will not reply; H_DRAINING, the server is about to close and has not taken the request,
/// which may be sent again elsewhere; H_CLOSED, H_DIED, the server is gone, and whether it has done what
/// was asked for is not known; H_MISBEHAVED; H_TOO_LONG, the request, for the server, or the reply, for
/// `capacity`: then `reply_length` is written, and the reply is dropped; H_LIMIT, no memory for a long reply; H_APPLICATION, the server's program has
/// answered with an error of its own.
h_status h_client_call(h_client_t *client,
                       const void *request,
                       size_t length,
                       int64_t timeout_ns,
                       void *reply,
                       size_t capacity,
                       size_t *reply_length);

/// As h_client_call, and the server is told the limit, which is not H_FOREVER: who handles the
/// request sees with h_request_time_left when its caller gives up. Costs 8 bytes of the request.
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
/// to make room for it. The reply is had with h_client_finish.
///
/// Errors, there is no call: as h_client_call; H_TIMED_OUT also where all calls that may be outstanding
/// wait for replies, those that were forgotten among them, and then nothing was sent, as the text says.
h_status h_client_start(h_client_t *client,
                        const void *request,
                        size_t length,
                        int64_t timeout_ns,
                        h_call_t *call);

/// Waits for the reply of a call, at most `timeout_ns`; to be freed with h_reply_free. Unless the
/// status is H_NOTHING or H_TIMED_OUT, the call does not exist afterwards; then it may be finished
/// later, or forgotten.
///
/// Errors: H_NOTHING, it is not there and the time limit was 0; H_TIMED_OUT; H_NO_SUCH; otherwise
/// as h_client_call.
h_status h_client_finish(h_client_t *client, h_call_t call, int64_t timeout_ns, h_reply_t **reply);

/// The reply of a call is not wanted any more; it will be dropped when it comes. The call does not exist
/// from now on (H_NO_SUCH), also for a thread that waits for it; its place among the calls that may be
/// outstanding is free when the server has answered. Of a call that does not exist: nothing.
h_status h_client_forget(h_client_t *client,
                         h_call_t call);

/// The bytes of a reply, and how many; `length` may be null. They stand still until it is freed.
h_status h_reply_data(const h_reply_t *reply, const void **data, size_t *length);

/// Frees a reply. Null is allowed.
void h_reply_free(h_reply_t *reply);

/// How many calls may be outstanding.
h_status h_client_outstanding_max(h_client_t *client, size_t *count);

/// Who is at the other end, as the kernel says.
h_status h_client_peer(h_client_t *client, h_peer_t *peer);

/// Which path is taken, and why: a text, copied to `buffer` with a zero byte behind it;
/// `length`, which may be null, gets the bytes before that.
///
/// Errors: H_TOO_LONG, `length` is written.
h_status h_client_explain(h_client_t *client, char *buffer, size_t capacity, size_t *length);

/// Closes a client: what was sent leaves first, for at most
/// `timeout_ns`. Then it is freed, whatever is returned.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED.
h_status h_client_close(h_client_t *client, int64_t timeout_ns);

/// Frees a client without waiting. Null is allowed.
/// Calls that are outstanding are over.
void h_client_free(h_client_t *client);

/// Connects to the server that is served as "[user@]name", as h_client_connect; from then on the policy
/// holds. `config` and `policy` may be null. To be freed with h_reconnecting_client_free.
///
/// Errors: as h_client_connect. Nothing is left of the attempt.
h_status h_reconnecting_client_connect(h_node_t *node,
                                       const char *name,
                                       const h_client_config_t *config,
                                       const h_reconnect_policy_t *policy,
                                       int64_t timeout_ns,
                                       h_reconnecting_client_t **client);

/// Sends a request and waits for the reply, through outages, at most `limit_ns` in all; the server is
/// told what is left of that (h_request_time_left), unless it is H_FOREVER. `is_idempotent`, not 0: twice
/// does what once does, so that a request whose reply was lost is sent again. The reply is to be freed
/// with h_reply_free.
///
/// Errors: H_UNREACHABLE, there was no connection, within the limit or as the policy says, and the
/// request was not sent; H_TIMED_OUT, the server may still be at work, and its reply will be dropped;
/// H_CLOSED, H_DIED, H_MISBEHAVED, the connection ended, and whether the server has done what was asked
/// for is not known; H_REFUSED, the server will not reply; H_APPLICATION; H_TOO_LONG; H_LIMIT; H_FORKED.
h_status h_reconnecting_client_call(h_reconnecting_client_t *client,
                                    const void *request,
                                    size_t length,
                                    int64_t limit_ns,
                                    uint32_t is_idempotent,
                                    h_reply_t **reply);

/// Where a client stands, as its last call has found or left it. `number`, which may be null, gets which
/// connection it has, or had last: 1 for the first, one more for each after it, so that whoever looks
/// late sees that there was an outage.
h_status h_reconnecting_client_state(h_reconnecting_client_t *client,
                                     h_connection_state *state,
                                     uint64_t *number);

/// Why there is no connection, or why the last attempt failed: a text, copied to `buffer` with a zero
/// byte behind it, and empty where there is a connection; `length`, which may be null, gets the bytes
/// before that.
///
/// Errors: H_TOO_LONG, `length` is written.
h_status h_reconnecting_client_why(h_reconnecting_client_t *client,
                                   char *buffer,
                                   size_t capacity,
                                   size_t *length);

/// Ends the connection, or the attempt to make one, and frees the client. No other thread may be in a
/// call with it. Null is allowed.
void h_reconnecting_client_free(h_reconnecting_client_t *client);

/// Makes a group with places for `members` members, each of which sends a part of up to
/// `part_bytes` bytes in each round, and is sent up to `scatter_bytes` (0: as many as part_bytes),
/// for which it has to have room.
/// To be freed with h_group_close or h_group_free.
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
/// Errors: H_INVALID, no name of a service; H_IN_USE; H_REFUSED; H_SYSTEM. No name was
/// taken.
h_status h_group_serve(h_group_t *group, const char *name, uint32_t access, uint32_t gid);

/// Nobody finds this group any more: its names are free at once for
/// another, its seeds are worthless, and who is connected stays so.
h_status h_group_stop_serving(h_group_t *group);

/// Asks `admit` about each process that wants to grow a member or helper; null: all
/// who may connect are let in again. See h_admission_t.
h_status h_group_set_admission(h_group_t *group, h_admission_t admit, void *context);

/// Offers this group, which is of the job's node, to the other ranks.
/// They wait until it is offered. One of a kind has a name; all names are free again when it is
/// freed.
///
/// Errors: H_INVALID, the name is none, or it is not of h_job_node; H_IN_USE, this rank offers
/// another of the same kind under it.
h_status h_group_offer(h_group_t *group, h_job_t *job, const char *name);

/// A seed from which the member in one place can be grown; and another there, when that one is
/// lost.
///
/// Errors: H_INVALID, there is no such place.
h_status h_group_seed_of(h_group_t *group, uint32_t member, h_seed_t *seed);

/// Waits at most `timeout_ns` until the part of every member has arrived. They stand still until
/// h_group_next_round.
///
/// Errors, what has arrived stays, and the call may be repeated: H_TIMED_OUT; H_DIED, H_CLOSED, a
/// member ended before its part had arrived: the text says who, and h_group_lost; H_STATE, members
/// are at a barrier, or the like; H_FORKED; H_SYSTEM.
h_status h_group_gather(h_group_t *group, int64_t timeout_ns);

/// h_group_gather for the parts of `wanted` members, whichever. A member that is lost is no error
/// while so many can still be reached.
h_status h_group_wait_for(h_group_t *group, uint32_t wanted, int64_t timeout_ns);

/// Which member the last call with this group failed because of.
///
/// Errors: H_NOTHING, it did not fail because of a member.
h_status h_group_lost(h_group_t *group, uint32_t *member);

/// After H_TIMED_OUT of the last call that had this group to itself: which members it was not done with, also
/// those that have yet to join. (One that another thread's call kept out says so, and leaves these as they
/// were.) `count` gets how many there are; if that is more than `capacity`, only so many are
/// written and H_TOO_LONG is returned. `members` may be null if `capacity` is 0.
///
/// Errors: H_NOTHING, it has left none out; H_TOO_LONG.
h_status h_group_missing(h_group_t *group,
                         uint32_t *members,
                         size_t capacity,
                         size_t *count);

/// Where the part of one member is, and how many bytes; `length` may be null. It begins at a
/// multiple of 64 bytes, and stands still until h_group_next_round.
///
/// Errors: H_NOTHING, it has not arrived.
h_status h_group_part(h_group_t *group, uint32_t member, const void **data, size_t *length);

/// The round is over: the bytes of its parts may change from now on, and the members may send
/// those of the next. A part that comes later is dropped.
h_status h_group_next_round(h_group_t *group);

/// Sends each member its own bytes: `count` of `parts`, one for each place. Waits at most
/// `timeout_ns` for each to have received what it was sent before, and for members that have yet
/// to join.
///
/// Errors: as h_group_gather, a lost member when all others have been served; H_INVALID, `count`
/// is another; H_TOO_LONG; nothing was sent then.
h_status h_group_scatter(h_group_t *group,
                         const h_bytes_t *parts,
                         size_t count,
                         int64_t timeout_ns);

/// h_group_scatter to `count` of its members alone, whose numbers are `members`: `parts[i]` is for
/// `members[i]`. After H_TIMED_OUT, for those whom h_group_missing names.
///
/// Errors: as h_group_scatter; H_INVALID, there is no such member, or one stands there twice.
h_status h_group_scatter_to(h_group_t *group,
                            const uint32_t *members,
                            const h_bytes_t *parts,
                            size_t count,
                            int64_t timeout_ns);

/// Waits at most `timeout_ns` until all has left of what a time limit has cut off; otherwise that leaves in
/// the group's next calls. What was left for a member that has ended goes with it, and is no error here:
/// h_group_gather and h_group_scatter tell of it.
///
/// Errors: H_CUT_OFF, it has not all left, and the call may be repeated; H_TIMED_OUT, another thread is in a
/// call with the group; H_FORKED; H_SYSTEM.
h_status h_group_flush(h_group_t *group,
                       int64_t timeout_ns);

/// Sends the same bytes to each member; otherwise as h_group_scatter.
h_status h_group_broadcast(h_group_t *group, const void *data, size_t length, int64_t timeout_ns);

/// Waits at most `timeout_ns` until every member has come to its barrier, and lets all of them go
/// on; the round is over.
///
/// Errors: as h_group_gather; then h_group_release lets those go that are there.
h_status h_group_barrier(h_group_t *group, int64_t timeout_ns);

/// Lets the members go on that have come to their barrier; the round is over. Those that come later
/// go on at once.
h_status h_group_release(h_group_t *group, int64_t timeout_ns);

/// How many places the group has, how many members and helpers have a connection now, and the
/// number of the round, from 1 on; each pointer may be null.
h_status h_group_members(h_group_t *group,
                         uint32_t *places,
                         uint32_t *joined,
                         size_t *helpers,
                         uint64_t *round);

/// How many parts this group has to have to be ready, for h_wait_any; all of them unless set.
h_status h_group_set_wanted(h_group_t *group, uint32_t wanted);

/// Closes a group: what the node has queued leaves first, for at most
/// `timeout_ns`. Then it is freed, whatever is returned.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED.
h_status h_group_close(h_group_t *group, int64_t timeout_ns);

/// Frees a group without waiting. Null is allowed.
/// Its members and helpers are told; pointers to parts are no longer valid.
void h_group_free(h_group_t *group);

/// Grows a member from a seed, waiting at most `timeout_ns` for the root's
/// answer. To be freed with h_group_member_close or
/// h_group_member_free.
/// The root may send it up to `receive_bytes` bytes at once.
///
/// Errors: H_SEED, no seed, or one of another protocol; H_REFUSED, the seed is old or forged, or the
/// root's owner lets this process not in; H_LIMIT, the root has as many as it may,
/// or its process has, or this one; H_NOT_FOUND, its process is gone; H_CLOSED, it went away
/// meanwhile; H_TIMED_OUT; H_INVALID, an argument or a setting; H_VERSION; H_MISBEHAVED; H_SYSTEM; of
/// another host H_NO_HOST, H_UNREACHABLE, H_UNTRUSTED, H_SECRET. Nothing is left of the attempt.
h_status h_group_member_grow(h_node_t *node,
                             const h_seed_t *seed,
                             size_t receive_bytes,
                             int64_t timeout_ns,
                             h_group_member_t **member);

/// Grows a member of what is served as "[user@]name". A name that nobody serves
/// yet, or whose process is ending, is waited for within the time limit, unless the setting
/// wait_for_names is off; otherwise as h_group_member_grow.
///
/// Errors: as h_group_member_grow; H_NOT_FOUND, nobody has served the name, or there is no
/// such user; H_INVALID, no name of a service; H_UNREACHABLE, of another host.
h_status h_group_member_connect(h_node_t *node,
                                const char *name,
                                size_t receive_bytes,
                                int64_t timeout_ns,
                                h_group_member_t **member);

/// Grows a member of what the root's rank offers under `name`: until it does, and
/// while too many ranks of other hosts ask it at once, this waits, at most `timeout_ns`; otherwise
/// as h_group_member_grow.
///
/// Errors: H_INVALID, there is no such rank, or the name is none; H_TIMED_OUT, nothing was offered;
/// H_UNREACHABLE; H_LIMIT; H_CLOSED. Nothing is left of the attempt.
h_status h_group_member_grow_from(h_job_t *job,
                                  uint32_t rank,
                                  const char *name,
                                  size_t receive_bytes,
                                  int64_t timeout_ns,
                                  h_group_member_t **member);

/// A member's place in the group, from 0 on, how many places there are, and the most bytes of a
/// part; each pointer may be null.
h_status h_group_member_place(h_group_member_t *member,
                              uint32_t *number,
                              uint32_t *places,
                              size_t *part_bytes);

/// Sends this member's part of the round, waiting at most `timeout_ns` for the round to begin and
/// for room.
///
/// Errors, nothing was sent: H_TIMED_OUT; H_TOO_LONG; H_CLOSED, H_DIED, the root is gone; H_STATE,
/// the root does something else. H_CUT_OFF: the rest leaves first in the next call.
h_status h_group_member_send(h_group_member_t *member,
                             const void *data,
                             size_t length,
                             int64_t timeout_ns);

/// What the root scatters or broadcasts next, waiting at most `timeout_ns`; copied to `buffer`,
/// which should hold as many bytes as the member was grown to receive. `length`, which may be
/// null, gets how many came.
///
/// Errors: H_TIMED_OUT; H_CLOSED, H_DIED, the root is gone; H_STATE, the root does something else;
/// H_TOO_LONG, `buffer` is too small: `length` is written, and what came is lost.
h_status h_group_member_receive(h_group_member_t *member,
                                int64_t timeout_ns,
                                void *buffer,
                                size_t capacity,
                                size_t *length);

/// Comes to the barrier: waits at most `timeout_ns` until every member has, and the root lets all
/// go on.
///
/// Errors: H_TIMED_OUT, then the call is to be repeated; H_CLOSED, H_DIED, the root is gone;
/// H_STATE, the root does something else.
h_status h_group_member_barrier(h_group_member_t *member, int64_t timeout_ns);

/// Gives this member's part of the round, `length` bytes, away to `count` helpers, up to 65,536, in
/// nearly equal pieces, in their order; each sends its own with h_group_helper_send or
/// h_group_member_send_part, and the part has arrived when all of them have. Waits at most
/// `timeout_ns` for the round to begin. The helpers trust one another, and this member answers for
/// them.
///
/// Errors: as h_group_member_send; H_INVALID, `count` is not allowed.
h_status h_group_member_delegate(h_group_member_t *member,
                                 size_t length,
                                 int64_t timeout_ns,
                                 h_part_t *parts,
                                 size_t count);

/// How many bytes a helper has to send for a part: neither more nor less.
///
/// Errors: H_INVALID, it is none.
h_status h_part_length(const h_part_t *part, size_t *length);

/// Sends a part that another member of the group, or this one, has delegated.
///
/// Errors: as h_group_member_send; H_INVALID, it is no part.
h_status h_group_member_send_part(h_group_member_t *member,
                                  const h_part_t *part,
                                  const void *data,
                                  size_t length,
                                  int64_t timeout_ns);

/// Who is at the other end, as the kernel says.
h_status h_group_member_peer(h_group_member_t *member, h_peer_t *peer);

/// Which path is taken, and why: a text, copied to `buffer` with a zero byte behind it;
/// `length`, which may be null, gets the bytes before that.
///
/// Errors: H_TOO_LONG, `length` is written.
h_status h_group_member_explain(h_group_member_t *member,
                                char *buffer,
                                size_t capacity,
                                size_t *length);

/// Closes a member: what was sent leaves first, for at most
/// `timeout_ns`. Then it is freed, whatever is returned.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED.
h_status h_group_member_close(h_group_member_t *member, int64_t timeout_ns);

/// Frees a member without waiting. Null is allowed.
/// What is still queued may be lost.
void h_group_member_free(h_group_member_t *member);

/// Grows a helper from a seed, waiting at most `timeout_ns` for the root's
/// answer. To be freed with h_group_helper_close or
/// h_group_helper_free.
///
/// Errors: H_SEED, no seed, or one of another protocol; H_REFUSED, the seed is old or forged, or the
/// root's owner lets this process not in; H_LIMIT, the root has as many as it may,
/// or its process has, or this one; H_NOT_FOUND, its process is gone; H_CLOSED, it went away
/// meanwhile; H_TIMED_OUT; H_INVALID, an argument or a setting; H_VERSION; H_MISBEHAVED; H_SYSTEM; of
/// another host H_NO_HOST, H_UNREACHABLE, H_UNTRUSTED, H_SECRET. Nothing is left of the attempt.
h_status h_group_helper_grow(h_node_t *node,
                             const h_seed_t *seed,
                             int64_t timeout_ns,
                             h_group_helper_t **helper);

/// Grows a helper of what is served as "[user@]name". A name that nobody serves
/// yet, or whose process is ending, is waited for within the time limit, unless the setting
/// wait_for_names is off; otherwise as h_group_helper_grow.
///
/// Errors: as h_group_helper_grow; H_NOT_FOUND, nobody has served the name, or there is no
/// such user; H_INVALID, no name of a service; H_UNREACHABLE, of another host.
h_status h_group_helper_connect(h_node_t *node,
                                const char *name,
                                int64_t timeout_ns,
                                h_group_helper_t **helper);

/// Grows a helper of what the root's rank offers under `name`: until it does, and
/// while too many ranks of other hosts ask it at once, this waits, at most `timeout_ns`; otherwise
/// as h_group_helper_grow.
///
/// Errors: H_INVALID, there is no such rank, or the name is none; H_TIMED_OUT, nothing was offered;
/// H_UNREACHABLE; H_LIMIT; H_CLOSED. Nothing is left of the attempt.
h_status h_group_helper_grow_from(h_job_t *job,
                                  uint32_t rank,
                                  const char *name,
                                  int64_t timeout_ns,
                                  h_group_helper_t **helper);

/// Sends a part that a member has delegated to this helper, waiting at most `timeout_ns` for room.
///
/// Errors: as h_group_member_send; H_INVALID, it is no part.
h_status h_group_helper_send(h_group_helper_t *helper,
                             const h_part_t *part,
                             const void *data,
                             size_t length,
                             int64_t timeout_ns);

/// Closes a helper: what was sent leaves first, for at most
/// `timeout_ns`. Then it is freed, whatever is returned.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED.
h_status h_group_helper_close(h_group_helper_t *helper, int64_t timeout_ns);

/// Frees a helper without waiting. Null is allowed.
/// What is still queued may be lost.
void h_group_helper_free(h_group_helper_t *helper);

/// Makes a publisher without subscribers; `config` may be null. To be freed with h_publisher_close
/// or h_publisher_free.
///
/// Errors: H_INVALID, a when_slow that is none; H_LIMIT, a number is not allowed, or there is no
/// memory for the pool, also where a control group of the process leaves less. Nothing is left.
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
/// Errors: H_INVALID, no name of a service; H_IN_USE; H_REFUSED; H_SYSTEM. No name was
/// taken.
h_status h_publisher_serve(h_publisher_t *publisher,
                           const char *name,
                           uint32_t access,
                           uint32_t gid);

/// Nobody finds this publisher any more: its names are free at once for
/// another, its seeds are worthless, and who is connected stays so.
h_status h_publisher_stop_serving(h_publisher_t *publisher);

/// Asks `admit` about each process that wants to grow a subscriber; null: all
/// who may connect are let in again. See h_admission_t.
h_status h_publisher_set_admission(h_publisher_t *publisher, h_admission_t admit, void *context);

/// Offers this publisher, which is of the job's node, to the other ranks.
/// They wait until it is offered. One of a kind has a name; all names are free again when it is
/// freed.
///
/// Errors: H_INVALID, the name is none, or it is not of h_job_node; H_IN_USE, this rank offers
/// another of the same kind under it.
h_status h_publisher_offer(h_publisher_t *publisher, h_job_t *job, const char *name);

/// Publishes a sample of `length` bytes; `number`, which may be null, gets how many were published
/// before it. A short one is copied to each subscriber, a longer one once, into the pool, of which it
/// takes a loan for as long as the call lasts.
///
/// Waits, at most `timeout_ns`, only for subscribers of H_WHEN_SLOW_WAIT. What subscribers are yet to
/// be sent leaves in later calls with the node, or in its progress thread.
///
/// Errors, nothing was published: H_FULL, the time limit was 0; H_TIMED_OUT; H_TOO_LONG; H_LIMIT,
/// every loan is out; H_FORKED; H_SYSTEM.
h_status h_publisher_publish(h_publisher_t *publisher,
                             const void *data,
                             size_t length,
                             int64_t timeout_ns,
                             uint64_t *number);

/// A sample of `length` bytes of the pool, to be written in place; never waits. Its bytes are what
/// they last were, of whatever sample. To be published with h_publisher_publish_loan, or freed with
/// h_loan_free. A loan is used by one thread at a time: it is gone when it has been published.
///
/// Errors: H_TOO_LONG, more than sample_bytes_max, or there is no pool; H_LIMIT, as many are on loan
/// as may be.
h_status h_publisher_loan(h_publisher_t *publisher,
                          size_t length,
                          h_loan_t **loan);

/// Where a loan's bytes are, and how many; `length` may be null. They are the caller's to write until
/// the loan is published or freed, and not to be touched afterwards.
///
/// Errors: H_FORKED.
h_status h_loan_data(h_loan_t *loan,
                     void **data,
                     size_t *length);

/// Makes a loan's sample shorter; one of at most `length` bytes stays as it is.
///
/// Errors: H_FORKED.
h_status h_loan_truncate(h_loan_t *loan, size_t length);

/// Publishes a loan: its bytes stay where they are, and each subscriber is told of them. Otherwise as
/// h_publisher_publish. H_OK: the loan is freed, and the pointer to its bytes no longer valid. On an
/// error it is as it was, and can be published again.
///
/// Errors: also H_INVALID, a loan of another publisher.
h_status h_publisher_publish_loan(h_publisher_t *publisher,
                                  h_loan_t *loan,
                                  int64_t timeout_ns,
                                  uint64_t *number);

/// Frees a loan that was not published. Null is allowed.
void h_loan_free(h_loan_t *loan);

/// Waits, at most `timeout_ns`, until every subscriber has been sent all that is kept for it. Short
/// samples then arrive even if this process ends; those of the pool can be read as long as it does
/// not: see h_publisher_drain.
///
/// Errors: H_FULL, the time limit was 0; H_TIMED_OUT; H_FORKED; H_SYSTEM.
h_status h_publisher_flush(h_publisher_t *publisher, int64_t timeout_ns);

/// h_publisher_flush, and waits until subscribers have released every sample of the pool: before the
/// publisher is freed, since the pool goes with it.
h_status h_publisher_drain(h_publisher_t *publisher,
                           int64_t timeout_ns);

/// What the publisher has counted.
h_status h_publisher_counts(h_publisher_t *publisher, h_publisher_counts_t *counts);

/// Its subscribers, and how each keeps up: as many as there are, or as `capacity` holds; `count` gets
/// how many there are.
h_status h_publisher_subscribers(h_publisher_t *publisher,
                                 h_subscriber_state_t *states,
                                 size_t capacity,
                                 size_t *count);

/// Closes a publisher: what the node has queued leaves first, for at most
/// `timeout_ns`. Then it is freed, whatever is returned.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED.
h_status h_publisher_close(h_publisher_t *publisher, int64_t timeout_ns);

/// Frees a publisher without waiting. Null is allowed.
/// Its subscribers are told goodbye, but one to which something has yet to be sent, or that missed the
/// last, H_HUNG_UP: see h_publisher_flush. Its pool goes: see h_publisher_drain. Loans stay the caller's
/// to free.
void h_publisher_free(h_publisher_t *publisher);

/// Grows a subscriber from a seed, waiting at most `timeout_ns` for the publisher's
/// answer. To be freed with h_subscriber_close or
/// h_subscriber_free.
/// `config` may be null.
///
/// Errors: H_SEED, no seed, or one of another protocol; H_REFUSED, the seed is old or forged, or the
/// publisher's owner lets this process not in; H_LIMIT, the publisher has as many as it may,
/// or its process has, or this one; H_NOT_FOUND, its process is gone; H_CLOSED, it went away
/// meanwhile; H_TIMED_OUT; H_INVALID, an argument or a setting; H_VERSION; H_MISBEHAVED; H_SYSTEM; of
/// another host H_NO_HOST, H_UNREACHABLE, H_UNTRUSTED, H_SECRET. Nothing is left of the attempt.
h_status h_subscriber_grow(h_node_t *node,
                           const h_seed_t *seed,
                           const h_subscribe_config_t *config,
                           int64_t timeout_ns,
                           h_subscriber_t **subscriber);

/// Grows a subscriber of what is served as "[user@]name". A name that nobody serves
/// yet, or whose process is ending, is waited for within the time limit, unless the setting
/// wait_for_names is off; otherwise as h_subscriber_grow.
///
/// Errors: as h_subscriber_grow; H_NOT_FOUND, nobody has served the name, or there is no
/// such user; H_INVALID, no name of a service; H_UNREACHABLE, of another host.
h_status h_subscriber_connect(h_node_t *node,
                              const char *name,
                              const h_subscribe_config_t *config,
                              int64_t timeout_ns,
                              h_subscriber_t **subscriber);

/// Grows a subscriber of what the publisher's rank offers under `name`: until it does, and
/// while too many ranks of other hosts ask it at once, this waits, at most `timeout_ns`; otherwise
/// as h_subscriber_grow.
///
/// Errors: H_INVALID, there is no such rank, or the name is none; H_TIMED_OUT, nothing was offered;
/// H_UNREACHABLE; H_LIMIT; H_CLOSED. Nothing is left of the attempt.
h_status h_subscriber_grow_from(h_job_t *job,
                                uint32_t rank,
                                const char *name,
                                const h_subscribe_config_t *config,
                                int64_t timeout_ns,
                                h_subscriber_t **subscriber);

/// The next sample, in the order of publication, waiting at most `timeout_ns`. To be freed with
/// h_sample_free, which lets the publisher use its place again, where it is one of the pool.
///
/// Errors: H_NOTHING, none is there and the time limit was 0; H_TIMED_OUT; H_CLOSED, H_DIED, H_HUNG_UP,
/// the publisher has gone or has sent this subscriber away, and all that had come was received;
/// H_MISBEHAVED; H_FORKED; H_SYSTEM.
h_status h_subscriber_receive(h_subscriber_t *subscriber,
                              int64_t timeout_ns,
                              h_sample_t **sample);

/// What a sample is, and where its bytes are.
h_status h_sample_info(const h_sample_t *sample, h_sample_info_t *info);

/// Copies `length` bytes from `offset` of a sample to `to`. Those of a volatile one may be of another
/// sample where the publisher has sent this subscriber away, until that is known here.
///
/// Errors: H_INVALID, outside the sample; H_CLOSED, it is volatile, and its publisher has gone;
/// H_FORKED.
h_status h_sample_read(const h_sample_t *sample,
                       size_t offset,
                       void *to,
                       size_t length);

/// Frees a sample. One of the pool is released by that, and its bytes are no longer there. Null is
/// allowed. A sample may be freed after its subscriber.
void h_sample_free(h_sample_t *sample);

/// How many samples were left out so far, before those that were received.
h_status h_subscriber_missed(h_subscriber_t *subscriber, uint64_t *missed);

/// Who is at the other end, as the kernel says.
h_status h_subscriber_peer(h_subscriber_t *subscriber, h_peer_t *peer);

/// Which path is taken, and why: a text, copied to `buffer` with a zero byte behind it;
/// `length`, which may be null, gets the bytes before that.
///
/// Errors: H_TOO_LONG, `length` is written.
h_status h_subscriber_explain(h_subscriber_t *subscriber,
                              char *buffer,
                              size_t capacity,
                              size_t *length);

/// Closes a subscriber: what the node has queued leaves first, for at most
/// `timeout_ns`. Then it is freed, whatever is returned.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED.
h_status h_subscriber_close(h_subscriber_t *subscriber, int64_t timeout_ns);

/// Frees a subscriber without waiting. Null is allowed.
/// What it had not received is lost; the publisher is told.
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
/// Errors: H_INVALID, no name of a service; H_IN_USE; H_REFUSED; H_SYSTEM. No name was
/// taken.
h_status h_byte_listener_serve(h_byte_listener_t *listener,
                               const char *name,
                               uint32_t access,
                               uint32_t gid);

/// Nobody finds this listener any more: its names are free at once for
/// another, its seeds are worthless, and who is connected stays so.
h_status h_byte_listener_stop_serving(h_byte_listener_t *listener);

/// Asks `admit` about each process that wants to grow a byte stream; null: all
/// who may connect are let in again. See h_admission_t.
h_status h_byte_listener_set_admission(h_byte_listener_t *listener,
                                       h_admission_t admit,
                                       void *context);

/// Offers this listener, which is of the job's node, to the other ranks.
/// They wait until it is offered. One of a kind has a name; all names are free again when it is
/// freed.
///
/// Errors: H_INVALID, the name is none, or it is not of h_job_node; H_IN_USE, this rank offers
/// another of the same kind under it.
h_status h_byte_listener_offer(h_byte_listener_t *listener, h_job_t *job, const char *name);

/// The next connection, waiting at most `timeout_ns`. Its bytes may be there already. To be freed
/// with h_byte_stream_close or h_byte_stream_free; it outlives the listener.
///
/// Errors: H_NOTHING, none is there and the time limit was 0; H_TIMED_OUT; H_FORKED; H_SYSTEM.
h_status h_byte_listener_accept(h_byte_listener_t *listener,
                                int64_t timeout_ns,
                                h_byte_stream_t **stream);

/// Connections that there are, accepted or not; and how many peers were sent away because they broke
/// the rules. Either pointer may be null.
h_status h_byte_listener_connections(h_byte_listener_t *listener,
                                     size_t *connections,
                                     uint64_t *misbehaved);

/// Closes a listener: what the node has queued leaves first, for at most
/// `timeout_ns`. Then it is freed, whatever is returned.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED.
h_status h_byte_listener_close(h_byte_listener_t *listener, int64_t timeout_ns);

/// Frees a listener without waiting. Null is allowed.
/// Its name is given up, and connections that were not accepted are closed; those that were go
/// on.
void h_byte_listener_free(h_byte_listener_t *listener);

/// Grows a byte stream from a seed, waiting at most `timeout_ns` for the listener's
/// answer. To be freed with h_byte_stream_close or
/// h_byte_stream_free.
/// `config` may be null.
///
/// Errors: H_SEED, no seed, or one of another protocol; H_REFUSED, the seed is old or forged, or the
/// listener's owner lets this process not in; H_LIMIT, the listener has as many as it may,
/// or its process has, or this one; H_NOT_FOUND, its process is gone; H_CLOSED, it went away
/// meanwhile; H_TIMED_OUT; H_INVALID, an argument or a setting; H_VERSION; H_MISBEHAVED; H_SYSTEM; of
/// another host H_NO_HOST, H_UNREACHABLE, H_UNTRUSTED, H_SECRET. Nothing is left of the attempt.
h_status h_byte_stream_grow(h_node_t *node,
                            const h_seed_t *seed,
                            const h_byte_config_t *config,
                            int64_t timeout_ns,
                            h_byte_stream_t **stream);

/// Grows a byte stream of what is served as "[user@]name". A name that nobody serves
/// yet, or whose process is ending, is waited for within the time limit, unless the setting
/// wait_for_names is off; otherwise as h_byte_stream_grow.
///
/// Errors: as h_byte_stream_grow; H_NOT_FOUND, nobody has served the name, or there is no
/// such user; H_INVALID, no name of a service; H_UNREACHABLE, of another host.
h_status h_byte_stream_connect(h_node_t *node,
                               const char *name,
                               const h_byte_config_t *config,
                               int64_t timeout_ns,
                               h_byte_stream_t **stream);

/// Grows a byte stream of what the listener's rank offers under `name`: until it does, and
/// while too many ranks of other hosts ask it at once, this waits, at most `timeout_ns`; otherwise
/// as h_byte_stream_grow.
///
/// Errors: H_INVALID, there is no such rank, or the name is none; H_TIMED_OUT, nothing was offered;
/// H_UNREACHABLE; H_LIMIT; H_CLOSED. Nothing is left of the attempt.
h_status h_byte_stream_grow_from(h_job_t *job,
                                 uint32_t rank,
                                 const char *name,
                                 const h_byte_config_t *config,
                                 int64_t timeout_ns,
                                 h_byte_stream_t **stream);

/// Reads what has come, at most `capacity` bytes, waiting at most `timeout_ns` for the first of them;
/// `length` gets how many. 0: the other side has said that there is no more, and all of it was read.
///
/// Errors, nothing was read: H_NOTHING, none is there and the time limit was 0; H_TIMED_OUT;
/// H_INVALID, a capacity of 0; H_DIED, H_CLOSED, the other side is gone without having said that there
/// is no more; H_MISBEHAVED; H_FORKED; H_SYSTEM.
h_status h_byte_stream_read(h_byte_stream_t *stream,
                            int64_t timeout_ns,
                            void *to,
                            size_t capacity,
                            size_t *length);

/// Sends as many of `length` bytes as there is room for, waiting at most `timeout_ns` for room for the
/// first of them; `taken` gets how many. Those are on their way, and arrive also if this process ends.
///
/// Errors, nothing was sent: H_FULL, the time limit was 0; H_TIMED_OUT; H_CLOSED, H_DIED, the other
/// side is gone; H_STATE, h_byte_stream_shutdown was called; H_MISBEHAVED; H_FORKED; H_SYSTEM.
h_status h_byte_stream_write(h_byte_stream_t *stream,
                             const void *data,
                             size_t length,
                             int64_t timeout_ns,
                             size_t *taken);

/// Sends all of `length` bytes, waiting at most `timeout_ns` for room. `taken`, which may be null, gets
/// how many were sent, also where the call fails.
///
/// Errors: as h_byte_stream_write; what was taken must not be sent again.
h_status h_byte_stream_write_all(h_byte_stream_t *stream,
                                 const void *data,
                                 size_t length,
                                 int64_t timeout_ns,
                                 size_t *taken);

/// Says that this side writes nothing more, waiting at most `timeout_ns` for room for that: the other
/// side reads what was written, and then the end. Reading goes on. Closing says it, too.
///
/// Errors: as h_byte_stream_write; it was not said, and can be said again.
h_status h_byte_stream_shutdown(h_byte_stream_t *stream,
                                int64_t timeout_ns);

/// Who is at the other end, as the kernel says.
h_status h_byte_stream_peer(h_byte_stream_t *stream, h_peer_t *peer);

/// Which path is taken, and why: a text, copied to `buffer` with a zero byte behind it;
/// `length`, which may be null, gets the bytes before that.
///
/// Errors: H_TOO_LONG, `length` is written.
h_status h_byte_stream_explain(h_byte_stream_t *stream,
                               char *buffer,
                               size_t capacity,
                               size_t *length);

/// Closes a stream: what the node has queued leaves first, for at most
/// `timeout_ns`. Then it is freed, whatever is returned.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED.
h_status h_byte_stream_close(h_byte_stream_t *stream, int64_t timeout_ns);

/// Frees a stream without waiting. Null is allowed.
/// The other side reads what was written, and then the end.
void h_byte_stream_free(h_byte_stream_t *stream);

/// Waits at most `timeout_ns` until one of several end points has something to receive: a receive
/// would return at once, unless another thread takes it. `index` gets the first of them that has. All
/// must be of this node.
///
/// Errors: H_NOTHING, none has and the time limit was 0; H_TIMED_OUT; H_INVALID, a kind that is
/// none, or an end point of another node; H_FORKED; H_SYSTEM.
h_status h_wait_any(h_node_t *node,
                    const h_end_point_t *end_points,
                    size_t count,
                    int64_t timeout_ns,
                    size_t *index);

/// Exports `bytes` of new memory, zero, to the other side of `link`: whole pages of 4096 bytes, one
/// holder, and what it may do (`access`, an h_aperture_access) decided for good. All of it is
/// charged to this process now. `number` gets its name, which is the same at both ends of the link:
/// what a message says to name it. An event of kind H_EVENT_APERTURE_READY says when the holder has
/// it, or H_EVENT_APERTURE_REFUSED why not.
///
/// Errors: H_INVALID, no whole pages, or access is none; H_LIMIT; H_FULL, not now: the other side
/// has yet to map others; H_NO_SUCH, no such link; H_STATE, not over this link; H_SYSTEM. Nothing
/// was done.
h_status h_export(h_node_t *node, h_link_t link, uint64_t bytes, uint32_t access, uint32_t *number);

/// Exports a read-only aperture of this node, which `number` names over `link`, to the other side of
/// `also` as well, where `also_number` gets its name. Both holders see the same pages. Each is revoked
/// for itself, and the memory goes with the last; h_aperture_reclaim takes it from all. Who has been
/// revoked and does not let go sees what is written there as long as it stays.
///
/// Errors: H_NO_SUCH, no such aperture of this node, or no such link; H_STATE, it is read-write, or not
/// over this link; otherwise as h_export. Nothing was done.
h_status h_export_also(h_node_t *node,
                       h_link_t link,
                       uint32_t number,
                       h_link_t also,
                       uint32_t *also_number);

/// Gives access to an aperture that this node has exported or holds. It may be taken as soon as
/// its event has come, and is to be freed with h_aperture_free. `access`, which may be null, gets
/// what the holder may do: an h_aperture_access.
///
/// Errors: H_NO_SUCH, it is not one of this node, was revoked, its link has ended, or it has no
/// memory yet.
h_status h_aperture_open(h_node_t *node,
                         h_link_t link,
                         uint32_t number,
                         uint32_t *access,
                         h_aperture_t **aperture);

/// Frees what h_aperture_open gave. The aperture stays as it is; see h_aperture_release and
/// h_aperture_revoke. Null is allowed.
void h_aperture_free(h_aperture_t *aperture);

/// The bytes of an aperture.
h_status h_aperture_bytes(h_aperture_t *aperture, uint64_t *bytes);

/// Copies `length` bytes of `from` to `offset` of an aperture. A message that is sent afterwards,
/// by this thread, finds them there.
///
/// Errors: H_INVALID, outside the aperture; H_REFUSED, the holder may not write; H_CLOSED, it was
/// revoked, or its link has ended.
h_status h_aperture_write(h_aperture_t *aperture, uint64_t offset, const void *from, size_t length);

/// Copies `length` bytes from `offset` of an aperture to `to`. The other side may be changing them
/// meanwhile: what is needed is copied, then checked, then used.
///
/// Errors: H_INVALID, outside the aperture; H_CLOSED, it was revoked, or its link has ended.
h_status h_aperture_read(h_aperture_t *aperture, uint64_t offset, void *to, size_t length);

/// Stores the word at `offset`, a multiple of 8, whole, after everything that this thread wrote
/// before.
///
/// Errors: as h_aperture_write.
h_status h_aperture_write_u64(h_aperture_t *aperture, uint64_t offset, uint64_t value);

/// Reads the word at `offset`, a multiple of 8, whole; what its writer wrote before it can be read
/// after it.
///
/// Errors: as h_aperture_read.
h_status h_aperture_read_u64(h_aperture_t *aperture, uint64_t offset, uint64_t *value);

/// Takes an aperture back that this node has exported, at once: its pages are given back, and what
/// the holder still writes is seen by nobody. Of a read-only one that others hold as well
/// (h_export_also) this holder alone is told; the pages stay for the others, and what h_aperture_open
/// gave goes on reading and writing them.
///
/// Errors: H_NO_SUCH.
h_status h_aperture_revoke(h_node_t *node,
                           h_link_t link,
                           uint32_t number);

/// Takes an aperture back that this node has exported, at once, and makes a message area of its
/// bytes as they are: from then on they stand still. They are copied once. It is taken from all who
/// hold it, those of h_export_also included.
///
/// Errors: H_NO_SUCH; H_LIMIT; H_SYSTEM. The aperture is as it was.
h_status h_aperture_reclaim(h_node_t *node, h_link_t link, uint32_t number, h_area_t *area);

/// Lets go of an aperture that this node holds; its owner is told.
///
/// Errors: H_NO_SUCH.
h_status h_aperture_release(h_node_t *node, h_link_t link, uint32_t number);

/// The job that this process was started for, of `hamlyn run`, a launcher that speaks PMIx, or one
/// that speaks PMI-1; with none of them it has one rank. Waits until all ranks have come, at most
/// the setting job_timeout_ms. Settings are given as to h_node_new. In a process that has the job
/// already it is the same one, whatever the settings. To be freed with h_job_free.
///
/// Errors: H_INVALID, a setting, or what the launcher has left in the environment; H_TIMED_OUT, ranks
/// did not come (the text says which, if the launcher does), or the launcher is silent; H_CLOSED, it
/// went away, or a rank has ended; H_MISBEHAVED, it says what makes no sense; H_SYSTEM. The process
/// has no job then.
h_status h_job_open(const h_setting_t *settings,
                    size_t count,
                    h_job_t **job);

/// Frees a job. With the last handle to it the launcher is told that this rank needs it no more. What
/// was made with it goes on working. Null is allowed.
void h_job_free(h_job_t *job);

/// The number of this process, from 0 to one less than h_job_size.
h_status h_job_rank(h_job_t *job, uint32_t *rank);

/// How many ranks the job has.
h_status h_job_size(h_job_t *job, uint32_t *size);

/// Who started it: an h_launcher.
h_status h_job_launcher(h_job_t *job, uint32_t *launcher);

/// Whether a rank is on this host, and messages to it go through a ring.
///
/// Errors: H_INVALID, there is no such rank.
h_status h_job_is_local(h_job_t *job, uint32_t rank, bool *is_local);

/// The node that end points of the job are made with: another handle to it, to be freed with
/// h_node_free or h_close, before or after the job.
h_status h_job_node(h_job_t *job, h_node_t **node);

/// Bytes for all other ranks, which h_job_get them after the next h_job_fence. A name is 1 to 32 of
/// a-z A-Z 0-9 . _ -, and is put once. The launcher carries them, and bounds them: Hydra to 511
/// bytes, `hamlyn run` and PMIx to 32,256.
///
/// Errors: H_INVALID, the name is none; H_IN_USE, this rank has put something under it; H_TOO_LONG;
/// H_TIMED_OUT, H_CLOSED, H_MISBEHAVED, the launcher.
h_status h_job_put(h_job_t *job, const char *name, const void *data, size_t length);

/// What `rank` has put under `name` before the last fence, copied to `buffer`; `length`, which may be
/// null, gets how many bytes it is.
///
/// Errors: H_NO_SUCH, nothing; H_TOO_LONG, `length` is written; H_INVALID, there is no such rank;
/// H_TIMED_OUT, H_CLOSED, H_MISBEHAVED, the launcher.
h_status h_job_get(h_job_t *job,
                   uint32_t rank,
                   const char *name,
                   void *buffer,
                   size_t capacity,
                   size_t *length);

/// Waits at most `timeout_ns` until all ranks have called this as often as this one. What was put
/// before is there for all. Threads that call this at once have a fence each, in turn: two calls
/// here are two calls of every other rank. It goes through the launcher, and is for setting up:
/// while messages are sent a barrier is a group's (h_group_barrier).
///
/// Errors: H_TIMED_OUT, the fence stays begun, and the next call goes on waiting for it: the text
/// says who is missing, if the launcher does; H_CLOSED, ranks have ended, or the launcher went away;
/// H_MISBEHAVED.
h_status h_job_fence(h_job_t *job,
                     int64_t timeout_ns);

/// The stream to a rank, which takes it with h_job_stream_from: until it does, this waits, at most
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

/// This rank's server of calls, which every rank may be a client of. To be freed with h_server_close
/// or h_server_free.
///
/// Errors: H_IN_USE, there is one already; H_SYSTEM.
h_status h_job_server(h_job_t *job,
                      h_server_t **server);

/// A client of a rank's h_job_server: until it has one, this waits, at most `timeout_ns`. To be freed
/// with h_client_close or h_client_free.
///
/// Errors: as h_client_grow_from.
h_status h_job_client(h_job_t *job,
                      uint32_t rank,
                      int64_t timeout_ns,
                      h_client_t **client);

/// A seed from which a sender grows what `rank` offers, now or later, under `name` and as `kind`, an
/// h_kind: for whoever has no use for h_stream_sender_grow_from and the like. A secret of the job.
///
/// Errors: H_INVALID, there is no such rank or kind, or the name is none.
h_status h_job_seed_of(h_job_t *job,
                       uint32_t rank,
                       uint32_t kind,
                       const char *name,
                       h_seed_t *seed);

/// Which launcher it was, why not another, how many ranks are on this host, and to which of them this
/// one has made links: a text, copied to `buffer` with a zero byte behind it; `length`, which may be
/// null, gets the bytes before that.
///
/// Errors: H_TOO_LONG, `length` is written.
h_status h_job_explain(h_job_t *job,
                       char *buffer,
                       size_t capacity,
                       size_t *length);

/// From now on `log` is told of links that come and go, and of who is refused or sent away, with the
/// reason, in all nodes of this process; in the place of what was set before. Null: nobody is told.
/// Nothing is told of messages. Of one user's peers at most 64 entries a second are told, and then how
/// many more there were ("left-out").
///
/// The function and its context must stay until another is set and, since it may be running at that
/// moment, every node that was there has been freed.
h_status h_set_log(h_log_t log,
                   void *context);

/// From now on `look_up` says where services of other hosts are whose names say no place
/// ("hamlyn://service"), in the place of the setting `directory`; null: the setting does. Whoever is
/// connecting, and has been told, stays with what was found.
///
/// `release`, which may be null, is called with `context` once nothing calls `look_up` any more: when
/// another is set, or the node and all end points made from it have been freed, and whoever is in it has
/// returned. It runs in that call or in a thread of the library's. Where this call fails nothing is
/// kept, and it is not called; where `look_up` is null `context` and `release` are not looked at.
///
/// Errors: H_STATE, the library was built without other hosts; H_FORKED.
h_status h_set_directory(h_node_t *node,
                         h_look_up_t look_up,
                         void *context,
                         h_release_t release);

/// Adds a place, host:port, behind those that there are. In an h_look_up_t alone.
///
/// Errors: H_INVALID, it is none; H_LIMIT, there are 64.
h_status h_places_add(h_places_t *places, const char *place);

/// Says why an h_look_up_t, before it returns false, could not look: a part of what whoever connects is
/// told. In an h_look_up_t alone.
///
/// Errors: H_INVALID, the text is not UTF-8.
h_status h_places_fail(h_places_t *places,
                       const char *why);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* HAMLYN_H */
