/*
 * Every type and call of hamlyn.hpp. Both ends are nodes of this process, each with a progress
 * thread. Compiled as C++17 and C++20; without exceptions only the calls that return results are used.
 */
#include <hamlyn.hpp>

#include <array>
#include <atomic>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

using namespace std::chrono_literals;
namespace hm = hamlyn;

#define THAT(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            std::fprintf(stderr, "line %d: not so: %s; last failure: %s\n", __LINE__, #condition,  \
                         h_error_message());                                                       \
            std::exit(1);                                                                          \
        }                                                                                          \
    } while (0)

/* A condition that becomes true a moment after the other end's answer. */
#define UNTIL(condition)                                                                           \
    while (!(condition)) {                                                                         \
        std::this_thread::sleep_for(1ms);                                                          \
    }

namespace {

constexpr auto LIMIT = 60s;

/* Takes the value, or ends with the library's words. */
template <class T> T good(hm::result<T> found, int line) {
    if (!found) {
        std::fprintf(stderr, "line %d: %s: %s\n", line, h_status_name(found.status()),
                     found.why().text());
        std::exit(1);
    }
    if constexpr (!std::is_void_v<T>) {
        return std::move(*found);
    }
}
#define GOOD(call) good((call), __LINE__)

struct ends {
    hm::node there, here;
};

ends two_nodes() {
    ends made{GOOD(hm::node::try_make({{"ring_bytes", "64K"}})), GOOD(hm::node::try_make())};
    GOOD(made.there.try_start_progress());
    GOOD(made.here.try_start_progress());
    return made;
}

void limits() {
    THAT(hm::timeout(hm::forever).nanoseconds() == H_FOREVER);
    THAT(hm::timeout(3us).nanoseconds() == 3000);
    THAT(hm::timeout(-3us).nanoseconds() == 0);
    THAT(hm::timeout(0s).nanoseconds() == 0);
    THAT(hm::timeout(std::chrono::duration<double>(1e-12)).nanoseconds() == 1);
    THAT(hm::timeout(std::chrono::duration<double>(1e300)).nanoseconds() == INT64_MAX);
    THAT(hm::timeout(std::chrono::duration<double>(std::numeric_limits<double>::quiet_NaN()))
             .nanoseconds() == 0);
    THAT(hm::timeout(std::chrono::hours::max()).nanoseconds() == INT64_MAX);
    const auto now = std::chrono::steady_clock::now();
    THAT(hm::timeout(now - 1s).nanoseconds() == 0);
    const auto left = hm::timeout(now + 1h).nanoseconds();
    THAT(left > 0 && left <= 3600LL * 1000 * 1000 * 1000);
}

void bytes_of_all_kinds() {
    const std::string text("a\0b", 3);
    const std::vector<std::uint16_t> numbers = {1, 2};
    const std::array<double, 3> doubles = {1, 2, 3};
    THAT(hm::bytes("text").size() == 4 && hm::bytes(text).size() == 3);
    THAT(hm::bytes(std::string_view(text)).text() == std::string_view(text));
    THAT(hm::bytes(numbers).size() == 4 && hm::bytes(doubles).size() == 24);
    THAT(hm::bytes().empty() && hm::bytes().text().empty() && hm::bytes(nullptr).empty());
    THAT(hm::bytes("xy").copy().size() == 2);
    static_assert(!std::is_convertible_v<std::vector<const char *>, hm::bytes>, "addresses");
    static_assert(!std::is_convertible_v<std::vector<std::string>, hm::bytes>, "no plain values");
    static_assert(!std::is_convertible_v<const std::vector<int> &, hm::buffer>, "not to be written");
#if __cplusplus >= 202002L
    const std::span<const std::byte> span = hm::bytes("span");
    THAT(span.size() == 4 && hm::bytes(span).text() == "span");
#endif
}

void a_text_with_a_zero_byte_is_refused(hm::node &node) {
    const std::string_view name("na\0me", 5);
    const auto refused = node.try_serve(name, hm::access::same_user());
    THAT(!refused && refused.status() == H_INVALID);
    THAT(std::strstr(refused.why().text(), "zero byte"));
    THAT(hm::stream_sender::try_connect(node, name, 0s).status() == H_INVALID);
    THAT(hm::seed::try_from_text(name).status() == H_INVALID);
    THAT(hm::node::try_make({{"dir", std::string("/tmp\0x", 6)}}).status() == H_INVALID);
}

void failures_say_why() {
    const auto made = hm::node::try_make({{"no_such_setting", "1"}});
    THAT(!made && made.status() == H_INVALID && std::strstr(made.why().text(), "no_such_setting"));
    THAT(!made.why().is_not_now());
    const auto none = hm::ticket::try_from_bytes("too short");
    THAT(none.status() == H_INVALID && std::strstr(none.why().text(), "9"));
    const std::array<char, H_TICKET_BYTES> wrong{};
    (void)hm::ticket::try_from_bytes(wrong);
    THAT(hm::seed::try_from_bytes("no seed").status() == H_SEED);
    THAT(hm::seed().try_kind().status() == H_SEED);
    THAT(std::strcmp(hm::failure::last(H_FULL).text(), "H_FULL") == 0);
#if HAMLYN_EXCEPTIONS
    try {
        hm::node node(hm::settings{{"no_such_setting", "1"}});
        THAT(false);
    } catch (const hm::error &e) {
        THAT(e.status() == H_INVALID && std::strstr(e.what(), "no_such_setting"));
    }
#endif
}

void the_lower_level() {
    auto [there, here] = two_nodes();
    auto area = GOOD(there.try_area(4096));
    auto queue = GOOD(there.try_queue(16));
    hm::slot_config config;
    config.metadata_entries = 2;
    auto slot = GOOD(there.try_slot(area, queue, config));
    const auto ticket = GOOD(slot.try_ticket(1));
    THAT(GOOD(ticket.try_capacity()) == 4096);
    THAT(GOOD(ticket.try_destination()) == GOOD(there.try_id()));
    THAT(GOOD(hm::ticket::try_from_bytes(ticket.as_bytes()).value().try_at(96)).try_capacity()
             .value() == 4000);
    THAT(GOOD(ticket.try_split(2)).size() == 2);
    GOOD(there.try_serve("lower", hm::access::same_user(), ticket.as_bytes()));
    auto link = GOOD(here.try_connect("lower", LIMIT));
    const auto to = GOOD(hm::ticket::try_from_bytes(GOOD(link.try_greeting())));
    const auto peer = GOOD(link.try_peer());
    THAT(peer.pid == getpid() && peer.uid == geteuid() && peer.gid == getegid());
    THAT(GOOD(link.try_explain()).find("ring") != std::string::npos);

    GOOD(here.try_send(to, "data", LIMIT, "about"));
    const auto message = GOOD(queue.try_receive(LIMIT));
    THAT(message.slot == slot && message.index == 1 && h_slot_index(message.slot) == slot.index());
    THAT(GOOD(there.link(message.link).try_peer()).pid == getpid());
    THAT(hm::bytes(GOOD(slot.try_metadata(1))).text() == "about");
    std::array<char, 4> copied{};
    GOOD(area.try_read(0, copied));
    THAT(std::string_view(copied.data(), 4) == "data");
    THAT(std::memcmp(GOOD(area.try_data()).data(), "data", 4) == 0);
    GOOD(area.try_write(8, "more"));
    THAT(area.try_read(4095, copied).status() == H_INVALID);
    THAT(queue.try_receive(0s).status() == H_NOTHING);
    THAT(queue.try_receive(1ms).status() == H_TIMED_OUT);

    GOOD(here.try_send_now(to, "now"));
    (void)GOOD(queue.try_receive(LIMIT));
    GOOD(here.try_send(GOOD(to.try_silent()), "silent", LIMIT));
    const auto fast = GOOD(slot.try_fast_ticket());
    GOOD(here.try_send_fast(fast, "fast", 7, LIMIT));
    THAT(GOOD(queue.try_receive(LIMIT)).word == 7);
    {
        auto gathered = GOOD(here.try_send_buffer(64));
        GOOD(gathered.try_write(0, "gathered"));
        const auto handle = GOOD(here.try_post_send(
            to, {gathered.piece(0, 4), gathered.piece(4, 4)}, "from pieces"));
        GOOD(here.try_flush(LIMIT));
        THAT(GOOD(here.try_is_reusable(handle)));
        (void)GOOD(queue.try_receive(LIMIT));
    }
    {
        /* Pages of the application's own, which it may protect. */
        void *start =
            mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        THAT(start != MAP_FAILED);
        const auto own = GOOD(there.try_area_over(hm::buffer(start, 4096)));
        const auto from = GOOD(here.try_send_buffer_over(hm::buffer(start, 4096)));
        THAT(GOOD(own.try_data()).size() == 4096 && from.piece(0, 4).length == 4);
        THAT(munmap(start, 4096) == 0);
        const int file = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        THAT(file >= 0 && ftruncate(file, 4096) == 0);
        THAT(there.try_area_of_file(file, 0, 4096).status() == H_INVALID);
        THAT(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
        auto of_file = GOOD(there.try_area_of_file(file, 0, 4096));
        GOOD(of_file.try_write(7, "written"));
        char found[7];
        THAT(pread(file, found, 7, 7) == 7 && std::string_view(found, 7) == "written");
        THAT(there.try_send_buffer_of_file(file, 1, 4096).status() == H_INVALID);
        close(file);
    }
    GOOD(slot.try_arm(0));
    THAT(slot.try_arm(0, 0, 8).status() == H_STATE && slot.try_close_entry(0).status() == H_STATE);
    config.mode = H_MODE_PARANOID;
    auto paranoid = GOOD(there.try_slot(area, queue, config));
    GOOD(paranoid.try_arm(0, 0, 8));
    GOOD(paranoid.try_close_entry(0));
    GOOD(slot.try_revoke());

    // Objects in use stay; freed ones are refused.
    THAT(area.try_free().status() == H_IN_USE && queue.try_free().status() == H_IN_USE);
    auto moved = std::move(slot);
    THAT(slot.try_revoke().status() == H_INVALID); // NOLINT: moved from
    GOOD(moved.try_free());
    THAT(moved.try_revoke().status() == H_INVALID);
    GOOD(paranoid.try_free());
    GOOD(queue.try_free());
    GOOD(area.try_free());

    GOOD(there.try_disable());
    GOOD(there.try_enable());
    GOOD(there.try_reset_watchdog());
    THAT(GOOD(there.try_counters()).size() > 50);
    THAT(GOOD(there.try_counter("packets_received")) >= 4);
    THAT(there.try_counter("no_such_counter").status() == H_NO_SUCH);
    (void)GOOD(there.try_notes());
    THAT(GOOD(there.try_listens_at()).empty());
    (void)GOOD(there.try_poll());
    THAT(GOOD(there.try_fd()) >= 0);
    (void)GOOD(there.try_prepare_to_wait());
    GOOD(there.try_stop_serving("lower"));
    THAT(GOOD(link.try_disconnect()) == 0);
    GOOD(there.try_stop_progress());
    auto later = GOOD(here.try_area(64));
    GOOD(here.try_close(LIMIT));
    THAT(here.try_poll().status() == H_INVALID);
    // Its node has gone before it.
    THAT(later.try_write(0, "x").status() == H_INVALID);
}

void events_and_apertures() {
    auto [there, here] = two_nodes();
    GOOD(there.try_serve_asking("asked", hm::access::same_user()));
    std::thread asks([&here = here] {
        THAT(here.try_connect("asked", LIMIT, "let me in").status() == H_REFUSED);
        (void)GOOD(here.try_connect("asked", LIMIT, "please"));
    });
    auto event = GOOD(there.try_next_event(LIMIT));
    THAT(event.kind == H_EVENT_REQUEST && event.text == "let me in" && event.peer.pid == getpid());
    GOOD(there.try_refuse(event.request, "not so"));
    do {
        event = GOOD(there.try_next_event(LIMIT));
    } while (event.kind != H_EVENT_REQUEST);
    THAT(event.text == "please");
    GOOD(there.try_accept(event.request, "welcome"));
    asks.join();
    do {
        event = GOOD(there.try_next_event(LIMIT));
    } while (event.kind != H_EVENT_CONNECTED);

    auto link = event.link;
    const auto number = GOOD(link.try_export_aperture(8192, H_APERTURE_READ_WRITE));
    do {
        event = GOOD(there.try_next_event(LIMIT));
    } while (event.kind != H_EVENT_APERTURE_READY);
    THAT(event.aperture == number);
    do {
        event = GOOD(here.try_next_event(LIMIT));
    } while (event.kind != H_EVENT_APERTURE_HELD);
    auto held = GOOD(event.link.try_open_aperture(number));
    const auto owned = GOOD(link.try_open_aperture(number));
    THAT(GOOD(held.try_size()) == 8192 && held.access() == H_APERTURE_READ_WRITE);
    GOOD(held.try_write(100, "through an aperture"));
    GOOD(held.try_write_u64(8, 77));
    THAT(GOOD(owned.try_read_u64(8)) == 77);
    std::string copied(19, ' ');
    GOOD(owned.try_read(100, copied));
    THAT(copied == "through an aperture");
    THAT(held.try_write(8190, "over").status() == H_INVALID);
    THAT(link.try_export_also(number, link).status() == H_STATE);
    THAT(link.try_export_also(99, link).status() == H_NO_SUCH);
    const auto kept = GOOD(link.try_reclaim_aperture(number));
    GOOD(kept.try_read(100, copied));
    THAT(copied == "through an aperture");
    THAT(link.try_revoke_aperture(number).status() == H_NO_SUCH);
    THAT(event.link.try_release_aperture(99).status() == H_NO_SUCH);
    THAT(there.try_next_event(0s).status() == H_NOTHING || true);
}

void tagged_writes() {
    auto [there, here] = two_nodes();
    auto receiver = GOOD(hm::tagged_receiver::try_make(there, 64));
    std::atomic<int> asked{0};
    GOOD(receiver.try_set_admission([&](const hm::peer &) {
        asked++;
        return false;
    }));
    GOOD(receiver.try_serve("tagged", hm::access::same_user()));
    THAT(hm::tagged_sender::try_connect(here, "tagged", LIMIT).status() == H_REFUSED && asked == 1);
#if HAMLYN_EXCEPTIONS
    GOOD(receiver.try_set_admission([](const hm::peer &) -> bool { throw 1; }));
    THAT(hm::tagged_sender::try_connect(here, "tagged", LIMIT).status() == H_REFUSED);
#endif
    GOOD(receiver.try_set_admission([](const hm::peer &who) { return who.pid == getpid(); }));
    auto sender = GOOD(hm::tagged_sender::try_connect(here, "tagged", LIMIT));
    GOOD(receiver.try_set_admission(nullptr));
    auto second = GOOD(hm::tagged_sender::try_grow(here, GOOD(receiver.try_seed()), LIMIT));
    UNTIL(GOOD(receiver.try_senders()) == 2);
    THAT(GOOD(sender.try_size_max()) >= 64 && GOOD(sender.try_area_size()) == 64);
    THAT(GOOD(sender.try_peer()).pid == getpid());
    THAT(!GOOD(sender.try_explain()).empty());
    GOOD(sender.try_send(8, "tagged", 5, LIMIT));
    GOOD(second.try_send(16, "second", 6, LIMIT));
    THAT(GOOD(receiver.try_get_tag(6, LIMIT)).tag == 6);
    THAT(GOOD(receiver.try_get_tag(LIMIT)).tag == 5);
    std::string read(6, ' ');
    GOOD(receiver.try_read(8, read));
    THAT(read == "tagged");
    THAT(GOOD(receiver.try_data()).text().substr(16, 6) == "second");
    GOOD(sender.try_close(LIMIT));
    THAT(sender.try_send(0, "x", 1, 0s).status() == H_INVALID);
    GOOD(receiver.try_close(LIMIT));
}

void datagrams() {
    auto [there, here] = two_nodes();
    auto receiver = GOOD(hm::datagram_receiver::try_make(there, 64));
    auto answers = GOOD(hm::datagram_receiver::try_make(here, 64));
    auto sender = GOOD(hm::datagram_sender::try_grow(here, GOOD(receiver.try_seed()), LIMIT));
    GOOD(receiver.try_serve("datagrams", hm::access::same_user()));
    (void)GOOD(hm::datagram_sender::try_connect(here, "datagrams", LIMIT));
    THAT(GOOD(sender.try_capacity()) == 64 && GOOD(sender.try_peer()).pid == getpid());
    THAT(!GOOD(sender.try_explain()).empty());
    const auto reply = GOOD(answers.try_reply_ticket());
    for (int round = 0; round < 3; round++) {
        // Each round needs the receiver to be ready again, which the datagram's end makes it.
        GOOD(sender.try_send("question", LIMIT, &reply, 4));
        auto question = GOOD(receiver.try_receive(LIMIT));
        THAT(question.offset() == 4 && question.size() == 8 && question.wants_reply());
        auto moved = std::move(question);
        THAT(GOOD(moved.try_data()).text() == "question");
        std::array<char, 8> copy{};
        THAT(GOOD(moved.try_read(copy)) == 8);
        GOOD(moved.try_reply("answer", LIMIT));
        THAT(GOOD(there.link(moved.link()).try_peer()).pid == getpid());
        THAT(GOOD(GOOD(answers.try_receive(LIMIT)).try_data()).text() == "answer");
    }
    GOOD(sender.try_send("last", LIMIT));
    auto last = GOOD(receiver.try_receive(LIMIT));
    THAT(last.try_reply("x", 0s).status() == H_STATE);
    GOOD(last.try_ready_anew());
    THAT(receiver.try_receive(0s).status() == H_NOTHING);
}

void streams() {
    auto [there, here] = two_nodes();
    hm::stream_config config;
    config.buffers = 2;
    config.buffers_max = 12;
    config.buffer_bytes = 4096;
    auto receiver = GOOD(hm::stream_receiver::try_make(there, config));
    GOOD(receiver.try_serve("stream", hm::access::same_user()));
    THAT(receiver.try_peer().status() == H_NOTHING);
    auto sender = GOOD(hm::stream_sender::try_connect(here, "stream", LIMIT));
    THAT(GOOD(sender.try_size_max()) > 4096 && GOOD(sender.try_peer()).pid == getpid());
    THAT(!GOOD(sender.try_explain()).empty());
    // In any order they may go, and none is used again while a guard holds it: with so few
    // buffers two hundred rounds would change bytes that were released too early.
    std::vector<hm::record> held;
    for (std::uint32_t i = 0; i < 200; i++) {
        GOOD(sender.try_send(std::vector<std::uint32_t>(900, i), LIMIT));
        GOOD(sender.try_flush(LIMIT));
        held.push_back(GOOD(receiver.try_receive(LIMIT)));
        THAT(held.back().number() == i && !held.back().is_volatile());
        if (held.size() == 3) {
            // Not the oldest.
            held.erase(held.begin() + (i % 2 ? 1 : 2));
            std::uint32_t first = 0;
            GOOD(held.front().try_read(0, hm::buffer(&first, sizeof first)));
            THAT(first == held.front().number());
            for (const std::byte *at = held.front().data().begin(); at < held.front().data().end();
                 at += sizeof first) {
                std::memcpy(&first, at, sizeof first);
                THAT(first == held.front().number());
            }
        }
        if (i % 7 == 6) {
            held.clear();
        }
    }
    THAT(GOOD(receiver.try_peer()).pid == getpid() && !GOOD(receiver.try_explain()).empty());
    {
        auto loan = GOOD(sender.try_lend(9, LIMIT));
        THAT(sender.try_send("x", LIMIT).status() == H_STATE);
        auto moved = std::move(loan);
        THAT(loan.data().size() == 0 && loan.try_send(LIMIT).status() == H_STATE);
        std::memcpy(moved.data().data(), "in place!", 9);
        THAT(moved.try_send(10, LIMIT).status() == H_INVALID && moved.data().size() == 9);
        GOOD(moved.try_send(8, LIMIT));
        THAT(moved.data().size() == 0 && moved.try_send(LIMIT).status() == H_STATE);
        // One that goes unsent is not sent.
        const auto unsent = GOOD(sender.try_lend(9, LIMIT));
    }
    GOOD(sender.try_flush(LIMIT));
    held.clear();
    THAT(GOOD(receiver.try_receive(LIMIT)).data().text() == "in place");
    // In another thread, and when the receiver has gone.
    GOOD(sender.try_send("kept", LIMIT));
    GOOD(sender.try_close(LIMIT));
    held.clear();
    auto kept = GOOD(receiver.try_receive(LIMIT));
    THAT(receiver.try_receive(LIMIT).status() == H_CLOSED);
    {
        const auto gone = std::move(receiver);
    }
    THAT(kept.data().text() == "kept");
    std::thread([record = std::move(kept)]() mutable { record.release(); }).join();

    config.aperture_bytes = 1 << 20;
    auto wide = GOOD(hm::stream_receiver::try_make(there, config));
    auto through =
        GOOD(hm::stream_sender::try_grow_with_aperture(here, GOOD(wide.try_seed()), LIMIT));
    // The receiver exports with the first message.
    do {
        GOOD(through.try_send("first", LIMIT));
        GOOD(through.try_flush(LIMIT));
        THAT(GOOD(wide.try_receive(LIMIT)).data().text() == "first");
        (void)GOOD(here.try_poll());
    } while (GOOD(through.try_explain()).rfind("records of", 0) != 0);
    THAT(through.try_lend(8, LIMIT).status() == H_STATE);
    GOOD(through.try_send(std::string(100000, 'v'), LIMIT));
    {
        const auto record = GOOD(wide.try_receive(LIMIT));
        THAT(record.is_volatile() && record.size() == 100000 && record.data().empty());
        std::string copy(10, ' ');
        GOOD(record.try_read(99990, copy));
        THAT(copy == "vvvvvvvvvv");
        THAT(record.try_read(99991, copy).status() == H_INVALID);
    }
    auto named = GOOD(hm::stream_receiver::try_make(there, config));
    GOOD(named.try_serve("named", hm::access::same_user()));
    (void)GOOD(hm::stream_sender::try_connect_with_aperture(here, "named", LIMIT));
    auto grown = GOOD(hm::stream_receiver::try_make(there));
    (void)GOOD(hm::stream_sender::try_grow(here, GOOD(grown.try_seed()), LIMIT));
}

void calls() {
    auto [there, here] = two_nodes();
    hm::server_config config;
    config.outstanding = 8;
    auto server = GOOD(hm::server::try_make(there, config));
    GOOD(server.try_serve("calls", hm::access::same_user()));
    std::thread serves([&server = server] {
        for (;;) {
            auto request = GOOD(server.try_receive(LIMIT));
            const std::string asked(GOOD(request.try_data()).text());
            THAT(GOOD(request.try_peer()).pid == getpid());
            if (asked == "fail") {
                THAT(request.try_fail(1, std::string_view("a\0b", 3), LIMIT).status() == H_INVALID);
                GOOD(request.try_fail(42, "on purpose", LIMIT));
                THAT(request.try_reply("again", LIMIT).status() == H_INVALID);
            } else if (asked == "drop") {
                const auto dropped = std::move(request);
            } else if (asked == "decline") {
                request.decline();
            } else if (asked == "late") {
                THAT(GOOD(request.try_time_left()).has_value());
                while (!GOOD(request.try_is_cancelled())) {
                    std::this_thread::yield();
                }
            } else if (asked == "end") {
                THAT(!GOOD(request.try_time_left()).has_value());
                GOOD(request.try_reply({}, LIMIT));
                return;
            } else {
                GOOD(request.try_reply(asked + asked, LIMIT));
            }
        }
    });
    hm::client_config wanted;
    wanted.outstanding = 4;
    auto client = GOOD(hm::client::try_connect(here, "calls", LIMIT, wanted));
    THAT(GOOD(client.try_outstanding_max()) == 4 && GOOD(client.try_peer()).pid == getpid());
    THAT(!GOOD(client.try_explain()).empty());
    THAT(GOOD(GOOD(client.try_call("ab", LIMIT)).try_data()).text() == "abab");
    THAT(GOOD(GOOD(client.try_call("ab", hm::forever)).try_data()).text() == "abab");
    // Longer than the bytes sent at once.
    const std::string large(100000, 'x');
    THAT(GOOD(GOOD(client.try_call(large, LIMIT)).try_data()).size() == 200000);
    std::array<char, 4> room{};
    THAT(GOOD(client.try_call("cd", room, LIMIT)) == 4 && room[3] == 'd');
    THAT(client.try_call("cde", room, LIMIT).status() == H_TOO_LONG);
    THAT(GOOD(client.try_call_within("ef", room, LIMIT)) == 4 && room[3] == 'f');
    const auto failed = client.try_call("fail", LIMIT);
    THAT(failed.status() == H_APPLICATION && failed.why().code() == 42);
    THAT(std::strstr(failed.why().text(), "on purpose"));
    THAT(client.try_call("drop", LIMIT).status() == H_REFUSED);
    THAT(client.try_call("decline", LIMIT).status() == H_REFUSED);
    // Its time is over, which the server sees, too, and then declines.
    const auto late = client.try_call_within("late", room, 20ms).status();
    THAT(late == H_TIMED_OUT || late == H_REFUSED);
    {
        // More than may be outstanding: those that go unfinished make room.
        for (int i = 0; i < 20; i++) {
            auto call = GOOD(client.try_start("gh", LIMIT));
            auto moved = std::move(call);
            if (i % 2) {
                const auto reply = GOOD(moved.try_finish(LIMIT));
                THAT(GOOD(reply.try_data()).text() == "ghgh");
                THAT(moved.try_finish(0s).status() != H_OK);
            }
        }
    }
    {
        hm::reconnect_policy policy;
        policy.outage_max = 1s;
        auto made = GOOD(hm::reconnecting_client::try_connect(here, "calls", LIMIT, policy, wanted));
        auto again = std::move(made);
        THAT(GOOD(GOOD(again.try_call("ij", LIMIT)).try_data()).text() == "ijij");
        THAT(GOOD(GOOD(again.try_call("kl", hm::forever, true)).try_data()).text() == "klkl");
        THAT(again.try_call("fail", LIMIT).why().code() == 42);
        THAT(GOOD(again.try_state()) == H_CONNECTED && GOOD(again.try_connections()) == 1);
        THAT(GOOD(again.try_why()).empty());
        THAT(hm::reconnecting_client::try_connect(here, "a/b", LIMIT).status() == H_INVALID);
    }
    UNTIL(GOOD(server.try_clients()) == 1);
    THAT(GOOD(server.try_misbehaved()) == 0);
    (void)GOOD(hm::client::try_grow(here, GOOD(server.try_seed()), LIMIT));
    (void)GOOD(client.try_call("end", LIMIT));
    serves.join();
    // A request keeps its server.
    auto last = GOOD(client.try_start("last", LIMIT));
    auto request = GOOD(server.try_receive(LIMIT));
    GOOD(server.try_begin_drain());
    THAT(server.try_receive(LIMIT).status() == H_CLOSED);
    {
        const auto gone = std::move(server);
    }
    GOOD(request.try_reply("kept", LIMIT));
    THAT(GOOD(GOOD(last.try_finish(LIMIT)).try_data()).text() == "kept");
}

void groups() {
    auto [there, here] = two_nodes();
    auto group = GOOD(hm::group::try_make(there, 2, 64));
    GOOD(group.try_serve("group", hm::access::same_user()));
    auto one = GOOD(hm::group_member::try_grow(here, GOOD(group.try_seed_of(0)), 64, LIMIT));
    auto two = GOOD(hm::group_member::try_connect(here, "group", 64, LIMIT));
    auto helper = GOOD(hm::group_helper::try_connect(here, "group", LIMIT));
    auto other = GOOD(hm::group_helper::try_grow(here, GOOD(group.try_seed()), LIMIT));
    const auto place = GOOD(two.try_place());
    THAT(place.number == 1 && place.places == 2 && place.part_bytes == 64);
    THAT(GOOD(one.try_peer()).pid == getpid() && !GOOD(one.try_explain()).empty());
    UNTIL(GOOD(group.try_members()).joined == 2 && GOOD(group.try_members()).helpers == 2);
    THAT(GOOD(group.try_members()).places == 2 && GOOD(group.try_members()).round == 1);

    GOOD(one.try_send("one", LIMIT));
    GOOD(group.try_wait_for(1, LIMIT));
    THAT(group.try_part(1).status() == H_NOTHING && group.try_lost().status() == H_NOTHING);
    const auto parts = GOOD(two.try_delegate(8, 3, LIMIT));
    std::size_t at = 0;
    const std::string text = "together";
    for (std::size_t i = 0; i < parts.size(); i++) {
        const auto part = GOOD(hm::group_part::try_from_bytes(parts[i].as_bytes()));
        const std::size_t length = GOOD(part.try_length());
        const hm::bytes mine(text.data() + at, length);
        at += length;
        i == 0 ? GOOD(helper.try_send(part, mine, LIMIT))
        : i == 1 ? GOOD(other.try_send(part, mine, LIMIT))
                 : GOOD(two.try_send(part, mine, LIMIT));
    }
    GOOD(group.try_gather(LIMIT));
    THAT(GOOD(group.try_part(0)).text() == "one" && GOOD(group.try_part(1)).text() == text);
    THAT(hm::group_part::try_from_bytes("none").status() == H_INVALID);
    GOOD(group.try_next_round());

    GOOD(group.try_scatter({"for one", "for two"}, LIMIT));
    std::array<char, 64> room{};
    THAT(GOOD(one.try_receive(room, LIMIT)) == 7 && std::string_view(room.data(), 7) == "for one");
    THAT(GOOD(two.try_receive(room, LIMIT)) == 7 && std::string_view(room.data(), 7) == "for two");
    THAT(group.try_missing().status() == H_NOTHING && group.missing().empty());
    THAT(group.try_gather(std::chrono::milliseconds(1)).status() == H_TIMED_OUT);
    THAT((GOOD(group.try_missing()) == std::vector<std::uint32_t>{0, 1}));
    GOOD(group.try_scatter_to({{1, "for two alone"}}, LIMIT));
    THAT(GOOD(two.try_receive(room, LIMIT)) == 13);
    THAT(group.try_scatter_to({{2, "for nobody"}}, LIMIT).status() == H_INVALID);
    GOOD(group.try_broadcast("for all", LIMIT));
    (void)GOOD(one.try_receive(room, LIMIT));
    (void)GOOD(two.try_receive(room, LIMIT));

    std::thread first([&] { GOOD(one.try_barrier(LIMIT)); });
    std::thread second([&] { GOOD(two.try_barrier(LIMIT)); });
    GOOD(group.try_barrier(LIMIT));
    first.join();
    second.join();
    GOOD(group.try_set_wanted(1));
    GOOD(one.try_send("again", LIMIT));
    const auto ready = GOOD(hm::try_wait_any(there, {group}, LIMIT));
    THAT(ready == 0);
    GOOD(two.try_close(LIMIT));
    hm::result<void> lost = group.try_gather(LIMIT);
    THAT(lost.status() == H_CLOSED && GOOD(group.try_lost()) == 1);
    GOOD(group.try_release(LIMIT));

    // A limit of no time cuts off the bytes that do not fit on their way at once.
    const std::string wide(16 << 20, 'w');
    auto broad = GOOD(hm::group::try_make(there, 1, 8, wide.size()));
    auto slow = GOOD(hm::group_member::try_grow(here, GOOD(broad.try_seed_of(0)), wide.size(), LIMIT));
    GOOD(broad.try_scatter_to({{0, wide}}, 0s));
    THAT(broad.try_flush(0s).status() == H_CUT_OFF);
    std::vector<char> all(wide.size());
    std::thread reads([&] { THAT(GOOD(slow.try_receive(all, LIMIT)) == wide.size()); });
    GOOD(broad.try_flush(LIMIT));
    reads.join();
    THAT(std::string_view(all.data(), all.size()) == wide);
}

void waiting_for_several() {
    auto [there, here] = two_nodes();
    auto server = GOOD(hm::server::try_make(there));
    auto stream = GOOD(hm::stream_receiver::try_make(there));
    auto tags = GOOD(hm::tagged_receiver::try_make(there, 64));
    auto datagrams = GOOD(hm::datagram_receiver::try_make(there, 64));
    const std::vector<hm::waitable> all = {server, stream, tags, datagrams};
    THAT(hm::try_wait_any(there, all, 0s).status() == H_NOTHING);
    auto sender = GOOD(hm::tagged_sender::try_grow(here, GOOD(tags.try_seed()), LIMIT));
    GOOD(sender.try_send(0, "x", 1, LIMIT));
    THAT(GOOD(hm::try_wait_any(there, all, LIMIT)) == 2);
}

std::atomic<int> connected{0};

void samples() {
    auto [there, here] = two_nodes();
    hm::publish_config config;
    config.sample_bytes_max = 5000;
    config.when_slow = H_WHEN_SLOW_WAIT;
    auto publisher = GOOD(hm::publisher::try_make(there, config));
    GOOD(publisher.try_serve("samples", hm::access::same_user()));
    hm::subscribe_config wanted;
    wanted.depth = 4;
    auto subscriber = GOOD(hm::subscriber::try_connect(here, "samples", LIMIT, wanted));
    auto other = GOOD(hm::subscriber::try_grow(here, GOOD(publisher.try_seed()), LIMIT, wanted));
    UNTIL(GOOD(publisher.try_counts()).subscribers == 2);
    THAT(GOOD(subscriber.try_peer()).pid == getpid());
    THAT(GOOD(subscriber.try_explain()).find("pool") != std::string::npos);
    GOOD(other.try_close(LIMIT));
    UNTIL(GOOD(publisher.try_counts()).subscribers == 1);

    THAT(GOOD(publisher.try_publish("short", LIMIT)) == 0);
    auto loan = GOOD(publisher.try_loan(5000));
    auto moved = std::move(loan);
    THAT(loan.get() == nullptr && loan.try_data().status() == H_INVALID);
    std::memset(GOOD(moved.try_data()).data(), 'x', 5000);
    GOOD(moved.try_truncate(4000));
    THAT(GOOD(publisher.try_publish(moved, LIMIT)) == 1 && moved.get() == nullptr);
    THAT(publisher.try_loan(5001).status() == H_TOO_LONG);
    GOOD(publisher.try_flush(LIMIT));

    THAT(GOOD(hm::try_wait_any(here, {subscriber}, LIMIT)) == 0);
    auto first = GOOD(subscriber.try_receive(LIMIT));
    THAT(first.number() == 0 && first.missed() == 0 && !first.is_volatile());
    THAT(first.data().text() == "short" && hm::bytes(GOOD(first.try_copy())).text() == "short");
    {
        auto second = GOOD(subscriber.try_receive(LIMIT));
        THAT(second.is_volatile() && second.data().empty() && second.size() == 4000);
        std::array<char, 2> last{};
        GOOD(second.try_read(3998, last));
        THAT(last[1] == 'x' && second.try_read(3999, last).status() == H_INVALID);
        THAT(GOOD(publisher.try_subscribers())[0].counts.outstanding == 1);
        THAT(GOOD(publisher.try_subscribers())[0].peer.pid == getpid());
    }
    GOOD(publisher.try_drain(LIMIT));
    THAT(GOOD(subscriber.try_missed()) == 0);
    THAT(subscriber.try_receive(0s).status() == H_NOTHING);
    hm::failure full(H_OK, "");
    for (int i = 0; i < 100000 && full.status() == H_OK; i++) {
        auto published = publisher.try_publish("again", 0s);
        full = published ? full : published.why();
    }
    THAT(full.status() == H_FULL && full.is_not_now());
    GOOD(publisher.try_close(LIMIT));
    UNTIL(subscriber.try_receive(LIMIT).status() == H_CLOSED);
    THAT(first.data().text() == "short");
}

void byte_streams() {
    auto [there, here] = two_nodes();
    hm::byte_config config;
    config.window_bytes = 4096;
    auto listener = GOOD(hm::byte_listener::try_make(there, config));
    GOOD(listener.try_serve("bytes", hm::access::same_user()));
    THAT(listener.try_accept(0s).status() == H_NOTHING);
    auto here_1 = GOOD(hm::byte_stream::try_connect(here, "bytes", LIMIT));
    THAT(GOOD(hm::try_wait_any(there, {listener}, LIMIT)) == 0);
    auto there_1 = GOOD(listener.try_accept(LIMIT));
    auto here_2 = GOOD(hm::byte_stream::try_grow(here, GOOD(listener.try_seed()), LIMIT, config));
    auto there_2 = GOOD(listener.try_accept(LIMIT));
    THAT(GOOD(listener.try_connections()) == 2);
    THAT(GOOD(there_1.try_peer()).pid == getpid());
    THAT(GOOD(here_1.try_write("bytes", LIMIT)) == 5);
    THAT(GOOD(hm::try_wait_any(there, {there_2, there_1}, LIMIT)) == 1);
    std::string got(5, '\0');
    THAT(GOOD(there_1.try_read(got, LIMIT)) == 5 && got == "bytes");
    THAT(there_1.try_read(got, 0s).status() == H_NOTHING);
    std::size_t taken = 0;
    const std::vector<char> many(100000);
    THAT(here_1.try_write_all(many, 1ms, &taken).status() == H_TIMED_OUT && taken <= 4096);
    GOOD(here_2.try_shutdown(LIMIT));
    THAT(here_2.try_write("x", LIMIT).status() == H_STATE);
    THAT(GOOD(there_2.try_read(got, LIMIT)) == 0);
    GOOD(here_1.try_close(LIMIT));
}

void the_log() {
    GOOD(hm::try_set_log([](const hm::log_entry &entry) {
        if (entry.kind == "connected") {
            THAT(entry.level == H_LOG_INFO && entry.process == getpid());
            THAT(entry.service == "logged" && !entry.text.empty());
            THAT(entry.user == getuid());
            connected++;
        }
    }));
    {
        auto [there, here] = two_nodes();
        GOOD(there.try_serve("logged", hm::access::same_user()));
        (void)GOOD(here.try_connect("logged", LIMIT));
        UNTIL(connected == 2);
    }
    GOOD(hm::try_set_log(nullptr));
}

void the_directory() {
    const std::string path = std::string(getenv("HAMLYN_DIR")) + "/key";
    std::ofstream(path) << std::string(64, '7') << '\n';
    THAT(chmod(path.c_str(), 0600) == 0);
    auto there = GOOD(hm::node::try_make({{"secret", path}, {"listen", "127.0.0.1:0"}}));
    auto here = GOOD(hm::node::try_make({{"secret", path}}));
    GOOD(there.try_serve("far", hm::access::same_user()));
    const std::string at = GOOD(there.try_listens_at());
    GOOD(here.try_set_directory([at](std::string_view service, std::chrono::nanoseconds limit, hm::places &found) {
        THAT(service == "far" && limit > 0ns);
        THAT(found.try_add("nowhere").status() == H_INVALID);
        return found.try_add(at).ok();
    }));
    (void)GOOD(here.try_connect("hamlyn://far", LIMIT));
#if HAMLYN_EXCEPTIONS
    here.set_directory([](std::string_view, std::chrono::nanoseconds, hm::places &found) -> bool {
        found.add("127.0.0.1:1");
        throw std::runtime_error("the catalogue is shut");
    });
    const auto failed = here.try_connect("hamlyn://far", LIMIT);
    THAT(failed.status() == H_UNREACHABLE);
    THAT(std::string(failed.why().text()).find("the catalogue is shut") != std::string::npos);
#endif
    GOOD(here.try_set_directory(nullptr));
    THAT(here.try_connect("hamlyn://far", LIMIT).status() == H_INVALID);
}

#if HAMLYN_EXCEPTIONS
/* The other half of each pair, as most programs use it. */
void with_exceptions() {
    hm::node there, here(hm::settings{{"ring_bytes", "64K"}});
    there.start_progress();
    here.start_progress();
    hm::stream_receiver stream(there);
    stream.serve("thrown", hm::access::same_user());
    THAT(!stream.receive(0s) && !stream.receive(1ms) && !stream.peer());
    auto sender = hm::stream_sender::connect(here, "thrown", LIMIT);
    sender.send("record", LIMIT);
    sender.flush(LIMIT);
    if (auto record = stream.receive(LIMIT)) {
        THAT(record->data().text() == "record");
    } else {
        THAT(false);
    }
    sender.close(LIMIT);
    try {
        (void)stream.receive(LIMIT);
        THAT(false);
    } catch (const hm::error &e) {
        THAT(e.status() == H_CLOSED);
    }
    hm::server server(there);
    auto client = hm::client::grow(here, server.seed(), LIMIT);
    auto call = client.start("what", LIMIT);
    THAT(!call.finish(0s));
    auto request = server.receive(LIMIT);
    THAT(request && request->data().text() == "what" && !request->time_left());
    request->fail(7, "no", LIMIT);
    try {
        (void)call.finish(LIMIT);
        THAT(false);
    } catch (const hm::error &e) {
        THAT(e.status() == H_APPLICATION && e.code() == 7 && std::strstr(e.what(), "no"));
    }
    hm::tagged_receiver tags(there, 64);
    auto writer = hm::tagged_sender::grow(here, tags.seed(), LIMIT);
    writer.send(0, "x", 3, LIMIT);
    THAT(tags.get_tag(LIMIT)->tag == 3 && !tags.get_tag(0s));
    hm::datagram_receiver datagrams(there, 64);
    auto shouts = hm::datagram_sender::grow(here, datagrams.seed(), LIMIT);
    shouts.send("hi", LIMIT);
    THAT(datagrams.receive(LIMIT)->data().text() == "hi");
    hm::group group(there, 1, 64);
    auto member = hm::group_member::grow(here, group.seed(), 64, LIMIT);
    THAT(!group.gather(0s) && !group.part(0) && !group.lost());
    member.send("part", LIMIT);
    THAT(group.gather(LIMIT) && group.part(0)->text() == "part");
    THAT(!hm::wait_any(there, {stream, server}, 0s) || true);
    auto area = there.area(64);
    auto queue = there.queue(4);
    const auto slot = there.slot(area, queue);
    there.serve("ticket", hm::access::same_user(), slot.ticket().as_bytes());
    const auto link = here.connect("ticket", LIMIT);
    const auto to = hm::ticket::from_bytes(link.greeting());
    here.send(to, "by hand", LIMIT);
    THAT(queue.receive(LIMIT) && !queue.receive(0s));
    THAT(here.send_now(to, "again"));
    THAT(hm::seed::from_text(server.seed().to_text()).kind() == H_KIND_CALL);
    THAT(server.seed().at_host("a.example:7000").kind() == H_KIND_CALL);
    here.close(LIMIT);
}
#endif

} // namespace

void jobs() {
    auto job = GOOD(hm::job::try_open());
    THAT(GOOD(job.try_rank()) == 0 && GOOD(job.try_size()) == 1 && GOOD(job.try_is_local(0)));
    THAT(GOOD(job.try_launcher()) == H_LAUNCHER_NONE && job.try_is_local(1).status() == H_INVALID);
    THAT(GOOD(job.try_explain()).find("rank 0 of 1") != std::string::npos);
    GOOD(job.try_put("x", std::string(3000, 'x')));
    GOOD(job.try_fence(LIMIT));
    THAT(GOOD(job.try_get(0, "x")).size() == 3000);
    THAT(job.try_get(0, "y").status() == H_NO_SUCH);
    THAT(job.try_put("x", "again").status() == H_IN_USE);
    auto node = GOOD(job.try_node());
    THAT(GOOD(node.try_id()) == GOOD(GOOD(job.try_node()).try_id()));

    auto from = GOOD(job.try_stream_from(0));
    auto to = GOOD(job.try_stream_to(0, LIMIT));
    GOOD(to.try_send("hello", LIMIT));
    GOOD(to.try_flush(LIMIT));
    THAT(GOOD(from.try_receive(LIMIT)).data().text() == "hello");
    auto server = GOOD(job.try_server());
    (void)GOOD(job.try_client(0, LIMIT));

    auto tagged = GOOD(hm::tagged_receiver::try_make(node, 64));
    GOOD(job.try_offer(tagged, "all"));
    THAT(job.try_offer(tagged, "all").status() == H_IN_USE);
    (void)GOOD(job.try_grow<hm::tagged_sender>(0, "all", LIMIT));
    auto datagrams = GOOD(hm::datagram_receiver::try_make(node, 64));
    GOOD(job.try_offer(datagrams, "all"));
    (void)GOOD(job.try_grow<hm::datagram_sender>(0, "all", LIMIT));
    auto stream = GOOD(hm::stream_receiver::try_make(node));
    GOOD(job.try_offer(stream, "all"));
    THAT(GOOD(job.try_seed_of(0, H_KIND_STREAM, "all")).as_bytes().size() > 0);
    (void)GOOD(job.try_grow<hm::stream_sender>(0, "all", LIMIT));
    hm::stream_config config;
    config.aperture_bytes = 65536;
    auto second = GOOD(hm::stream_receiver::try_make(node, config));
    GOOD(job.try_offer(second, "second"));
    (void)GOOD(job.try_grow_with_aperture(0, "second", LIMIT));
    auto calls = GOOD(hm::server::try_make(node));
    GOOD(job.try_offer(calls, "all"));
    (void)GOOD(job.try_grow<hm::client>(0, "all", LIMIT, hm::client_config{}));
    auto group = GOOD(hm::group::try_make(node, 1, 8));
    GOOD(job.try_offer(group, "all"));
    auto member = GOOD(job.try_grow<hm::group_member>(0, "all", LIMIT, 8));
    (void)GOOD(job.try_grow<hm::group_helper>(0, "all", LIMIT));
    auto publisher = GOOD(hm::publisher::try_make(node));
    GOOD(job.try_offer(publisher, "all"));
    (void)GOOD(job.try_grow<hm::subscriber>(0, "all", LIMIT));
    auto listener = GOOD(hm::byte_listener::try_make(node));
    GOOD(job.try_offer(listener, "all"));
    (void)GOOD(job.try_grow<hm::byte_stream>(0, "all", LIMIT, hm::byte_config{}));
    THAT(job.try_grow<hm::stream_sender>(0, "none", 20ms).status() == H_TIMED_OUT);
    auto moved = std::move(job);
    THAT(job.try_rank().status() == H_INVALID && GOOD(moved.try_rank()) == 0);
}

int main() {
    alarm(120);
    char name[] = "/tmp/hamlyn-types-" "XX" "XX" "XX";
    const char *directory = mkdtemp(name);
    THAT(directory && setenv("HAMLYN_DIR", directory, 1) == 0);
    limits();
    bytes_of_all_kinds();
    failures_say_why();
    {
        auto [there, here] = two_nodes();
        a_text_with_a_zero_byte_is_refused(there);
    }
    the_lower_level();
    events_and_apertures();
    tagged_writes();
    datagrams();
    streams();
    calls();
    groups();
    waiting_for_several();
    samples();
    byte_streams();
    jobs();
    the_log();
    the_directory();
#if HAMLYN_EXCEPTIONS
    with_exceptions();
#endif
    std::filesystem::remove_all(directory);
    return 0;
}
