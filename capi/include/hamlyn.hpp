/*
 * Hamlyn for C++17 and later: hamlyn.h as types that free their resources.
 *
 * hamlyn.h describes each call, its errors and the state after them, at the underlying function, which
 * the comment beside the call names. The differences here:
 *
 * Errors. Each call that can fail has two forms. `try_receive(..)` returns a result<T>: a value, or a
 * failure with its h_status and text. `receive(..)` returns the value and throws hamlyn::error. If
 * exceptions are turned off, the second form ends the process with the text on stderr instead, as the
 * standard library does; use the first. The second form of a receive returns a std::optional: empty,
 * nothing came within the time limit.
 *
 * Ownership. Objects are moved, not copied. Their destructors free their resources without waiting;
 * `close(limit)` waits until sent messages have left. Declare a node before the objects made from it.
 * An end point lives as long as the last record, datagram or call of it, which are guards: a destroyed
 * record gives its memory back, and a request destroyed unanswered is declined. `get()` is the pointer
 * or value for hamlyn.h; null once the object was closed or moved from, and then every call is
 * H_INVALID.
 *
 * Time limits are durations or points in time of std::chrono; one that is past does not wait, and
 * hamlyn::no_limit waits as long as it takes.
 *
 * Bytes are any object with data() and size(): a string, a vector, an array, a span; or a pointer and
 * a length. They are copied or used before the call returns.
 *
 * Threads, forks and pointers into areas: see hamlyn.h. A guard may be destroyed in another thread than
 * the one that received it.
 */
#ifndef HAMLYN_HPP
#define HAMLYN_HPP

#if !defined(_MSVC_LANG) && __cplusplus < 201703L
#error "hamlyn.hpp needs C++17 or later (-std=c++17); hamlyn.h is for C++11 and later"
#endif

#include <hamlyn.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
#define HAMLYN_EXCEPTIONS 1
#else
#define HAMLYN_EXCEPTIONS 0
#endif

namespace hamlyn {

/* ---- Errors ---------------------------------------------------------------------------------- */

/// The reason why a call failed.
class failure {
public:
    failure(h_status status, std::string text, std::uint32_t code = 0)
        : status_(status), code_(code), text_(std::move(text)) {}

    /// The failure of this thread's last call, which returned `status`. h_error_message,
    /// h_error_code
    static failure last(h_status status) {
        // They are frequent, and their names are text enough.
        if (status == H_NOTHING || status == H_FULL) {
            return failure(status, std::string());
        }
        return failure(status, h_error_message(), status == H_APPLICATION ? h_error_code() : 0);
    }

    h_status status() const noexcept { return status_; }
    /// For H_APPLICATION: the code of the server's program.
    std::uint32_t code() const noexcept { return code_; }
    /// A sentence, or the name of the status. h_status_name
    const char *text() const noexcept {
        return text_.empty() ? h_status_name(static_cast<std::int32_t>(status_)) : text_.c_str();
    }
    /// Whether the call can be made again later: nothing was there, there was no room, or the time
    /// limit has passed.
    bool is_not_now() const noexcept {
        return status_ == H_NOTHING || status_ == H_FULL || status_ == H_TIMED_OUT;
    }

private:
    h_status status_;
    std::uint32_t code_;
    std::string text_;
};

/// The exception of every call.
class error : public std::runtime_error {
public:
    explicit error(const failure &why)
        : std::runtime_error(why.text()), status_(why.status()), code_(why.code()) {}

    h_status status() const noexcept { return status_; }
    /// For H_APPLICATION: the code of the server's program.
    std::uint32_t code() const noexcept { return code_; }

private:
    h_status status_;
    std::uint32_t code_;
};

namespace detail {

[[noreturn]] inline void raise(const failure &why) {
#if HAMLYN_EXCEPTIONS
    throw error(why);
#else
    std::fprintf(stderr, "hamlyn: %s: %s\n",
                 h_status_name(static_cast<std::int32_t>(why.status())), why.text());
    std::abort();
#endif
}

} // namespace detail

/// The result of a call: a value, or the failure.
template <class T> class [[nodiscard]] result {
public:
    result(T value) : value_(std::move(value)) {}
    result(failure why) : why_(std::move(why)) {}

    bool ok() const noexcept { return value_.has_value(); }
    explicit operator bool() const noexcept { return ok(); }
    h_status status() const noexcept { return ok() ? H_OK : why_->status(); }
    /// The failure; only if there is one.
    const failure &why() const noexcept { return *why_; }

    /// The value; only if there is one.
    T &operator*() noexcept { return *value_; }
    const T &operator*() const noexcept { return *value_; }
    T *operator->() noexcept { return &*value_; }
    const T *operator->() const noexcept { return &*value_; }

    /// The value. Throws.
    T value() && {
        check();
        return std::move(*value_);
    }
    T &value() & {
        check();
        return *value_;
    }

private:
    void check() const {
        if (!ok()) {
            detail::raise(*why_);
        }
    }

    std::optional<T> value_{};
    std::optional<failure> why_{};
};

/// The result of a call without a value.
template <> class [[nodiscard]] result<void> {
public:
    result() = default;
    result(failure why) : why_(std::move(why)) {}

    bool ok() const noexcept { return !why_.has_value(); }
    explicit operator bool() const noexcept { return ok(); }
    h_status status() const noexcept { return ok() ? H_OK : why_->status(); }
    /// The failure; only if there is one.
    const failure &why() const noexcept { return *why_; }
    /// Throws.
    void value() const {
        if (!ok()) {
            detail::raise(*why_);
        }
    }

private:
    std::optional<failure> why_{};
};

/// The version of the library, such as "0.1.0". h_version
inline const char *version() noexcept { return h_version(); }

/* ---- Time, bytes, text ----------------------------------------------------------------------- */

/// Without a time limit.
struct no_limit_t {};
inline constexpr no_limit_t no_limit{};

/// How long a call may wait: a duration, a point in time, or `no_limit`. What is past does not wait.
class time_limit {
public:
    constexpr time_limit(no_limit_t) noexcept : ns_(H_FOREVER) {}

    template <class Rep, class Period>
    constexpr time_limit(std::chrono::duration<Rep, Period> limit) noexcept : ns_(of(limit)) {}

    template <class Clock, class Duration>
    time_limit(std::chrono::time_point<Clock, Duration> end) noexcept : ns_(of(end - Clock::now())) {}

    /// In nanoseconds, as in hamlyn.h.
    constexpr std::int64_t nanoseconds() const noexcept { return ns_; }

private:
    template <class Rep, class Period>
    static constexpr std::int64_t of(std::chrono::duration<Rep, Period> limit) noexcept {
        // NaN does not wait, either.
        if (!(limit > std::chrono::duration<Rep, Period>::zero())) {
            return 0;
        }
        // Some 290 years are enough, and the largest value that fits.
        if (std::chrono::duration<double>(limit).count() >= 9.2e9) {
            return INT64_MAX;
        }
        const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(limit).count();
        // Less than one nanosecond is a limit, not 0.
        return ns > 0 ? static_cast<std::int64_t>(ns) : 1;
    }

    std::int64_t ns_;
};

namespace detail {

/// Whether C is a container of contiguous plain values.
template <class C, class = void> struct is_container : std::false_type {};
template <class C>
struct is_container<
    C, std::void_t<decltype(std::data(std::declval<C &>())), decltype(std::declval<C &>().size())>> {
    using element = std::remove_pointer_t<decltype(std::data(std::declval<C &>()))>;
    // Pointers mean nothing in another process.
    static constexpr bool value =
        std::is_trivially_copyable_v<element> && !std::is_pointer_v<element>;
};

} // namespace detail

/// The caller's bytes, to be read.
class bytes {
public:
    constexpr bytes() noexcept = default;
    bytes(const void *data, std::size_t size) noexcept
        : data_(static_cast<const std::byte *>(data)), size_(size) {}
    /// A text, without the zero byte that ends it.
    bytes(const char *text) noexcept : bytes(text, text ? std::strlen(text) : 0) {}
    /// A string, a vector, a std::array, a span and the like.
    template <class C, class = std::enable_if_t<detail::is_container<const C>::value &&
                                                !std::is_same_v<C, bytes> && !std::is_array_v<C>>>
    bytes(const C &from) noexcept : bytes(std::data(from), from.size() * sizeof(*std::data(from))) {}

    const std::byte *data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }
    bool empty() const noexcept { return size_ == 0; }
    const std::byte *begin() const noexcept { return data_; }
    const std::byte *end() const noexcept { return data_ + size_; }
    /// The same bytes as text.
    std::string_view text() const noexcept {
        return size_ ? std::string_view(reinterpret_cast<const char *>(data_), size_)
                     : std::string_view();
    }
    /// A copy of them.
    std::vector<std::byte> copy() const { return std::vector<std::byte>(begin(), end()); }

private:
    const std::byte *data_ = nullptr;
    std::size_t size_ = 0;
};

/// Room for bytes, to be written.
class buffer {
public:
    buffer(void *data, std::size_t size) noexcept : data_(data), size_(size) {}
    /// A string, a vector, a std::array, a span and the like.
    template <class C,
              class = std::enable_if_t<detail::is_container<C>::value && !std::is_same_v<C, buffer> &&
                                       !std::is_const_v<typename detail::is_container<C>::element>>>
    buffer(C &to) noexcept : buffer(std::data(to), to.size() * sizeof(*std::data(to))) {}

    void *data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }

private:
    void *data_;
    std::size_t size_;
};

namespace detail {

inline result<void> done(h_status status) {
    if (status == H_OK) {
        return {};
    }
    return failure::last(status);
}

template <class T> result<T> done(h_status status, T value) {
    if (status == H_OK) {
        return value;
    }
    return failure::last(status);
}

/// The value of a receive: nothing within the time limit is no error.
template <class T> std::optional<T> if_any(result<T> found) {
    if (!found && (found.status() == H_NOTHING || found.status() == H_TIMED_OUT)) {
        return std::nullopt;
    }
    return std::move(found).value();
}

/// The same for a wait: whether it succeeded.
inline bool if_so(const result<void> &found) {
    if (!found && (found.status() == H_NOTHING || found.status() == H_TIMED_OUT)) {
        return false;
    }
    found.value();
    return true;
}

/// A text for C. One with a zero byte in it would end there, and become another text.
class c_text {
public:
    explicit c_text(std::string_view text) : text_(text) {}
    bool is_one() const noexcept { return text_.find('\0') == std::string::npos; }
    const char *get() const noexcept { return text_.c_str(); }
    static failure refused() { return failure(H_INVALID, "the text has a zero byte in it"); }

private:
    std::string text_;
};

/// A text that C copies to a buffer, or whose length it gives if the buffer is too small.
template <class Ask> result<std::string> text_of(Ask ask) {
    std::string text(512, '\0');
    for (int tries = 0;; tries++) {
        std::size_t length = 0;
        const h_status status = ask(&text[0], text.size(), &length);
        if (status == H_TOO_LONG && tries < 8) {
            // It may grow in between.
            text.resize(length + 512);
            continue;
        }
        if (status != H_OK) {
            return failure::last(status);
        }
        text.resize(length);
        return text;
    }
}

/// Bytes that C copies to a buffer of at most `max` bytes.
template <class Ask> result<std::vector<std::byte>> bytes_of(std::size_t max, Ask ask) {
    std::vector<std::byte> found(max);
    std::size_t length = 0;
    const h_status status = ask(found.data(), found.size(), &length);
    if (status != H_OK) {
        return failure::last(status);
    }
    found.resize(length);
    return found;
}

} // namespace detail

/* ---- Values ---------------------------------------------------------------------------------- */

/// The identity of the other end, from the kernel; empty for a value that the kernel does not give.
struct peer {
    std::optional<std::uint32_t> uid{};
    std::optional<std::uint32_t> gid{};
    std::optional<std::int32_t> pid{};
    /// Its node, and whether it has proved that it is that node.
    std::uint64_t node = 0;
    bool is_proved = false;
    /// For another host: the address that it is connected from, and the name in its certificate,
    /// its hash, or `secret`. Empty for a process of this host.
    std::string address{};
    std::string identity{};

    static peer of(const h_peer_t &from) {
        peer found;
        if (from.uid >= 0) {
            found.uid = static_cast<std::uint32_t>(from.uid);
        }
        if (from.gid >= 0) {
            found.gid = static_cast<std::uint32_t>(from.gid);
        }
        if (from.pid >= 0) {
            found.pid = static_cast<std::int32_t>(from.pid);
        }
        found.node = from.node;
        found.is_proved = from.is_proved;
        found.address = from.address;
        found.identity = from.identity;
        return found;
    }
};

namespace detail {

template <class Ask> result<peer> peer_of(Ask ask) {
    h_peer_t found;
    const h_status status = ask(&found);
    if (status != H_OK) {
        return failure::last(status);
    }
    return peer::of(found);
}

} // namespace detail

/// The processes that may connect to a service.
struct access {
    std::uint32_t who;
    std::uint32_t gid;

    static constexpr access same_user() noexcept { return {H_ACCESS_SAME_USER, 0}; }
    /// Members of this group, and the same user.
    static constexpr access group(std::uint32_t gid) noexcept { return {H_ACCESS_GROUP, gid}; }
    static constexpr access anyone() noexcept { return {H_ACCESS_ANYONE, 0}; }
};

/// A receiver's seed, from which senders can be grown. A secret; may be copied freely.
class seed {
public:
    seed() noexcept : raw_{} {}
    explicit seed(const h_seed_t &raw) noexcept : raw_(raw) {}

    /// h_seed_from_bytes
    static result<seed> try_from_bytes(bytes from) {
        seed read;
        return detail::done(h_seed_from_bytes(from.data(), from.size(), &read.raw_), read);
    }
    static seed from_bytes(bytes from) { return try_from_bytes(from).value(); }

    /// h_seed_from_text
    static result<seed> try_from_text(std::string_view from) {
        const detail::c_text text(from);
        if (!text.is_one()) {
            return detail::c_text::refused();
        }
        seed read;
        return detail::done(h_seed_from_text(text.get(), &read.raw_), read);
    }
    static seed from_text(std::string_view from) { return try_from_text(from).value(); }

    /// h_seed_at_host
    result<seed> try_at_host(std::string_view at) const {
        const detail::c_text text(at);
        if (!text.is_one()) {
            return detail::c_text::refused();
        }
        seed made;
        return detail::done(h_seed_at_host(&raw_, text.get(), &made.raw_), made);
    }
    seed at_host(std::string_view at) const { return try_at_host(at).value(); }

    /// h_seed_to_text
    result<std::string> try_to_text() const {
        return detail::text_of([this](char *to, std::size_t capacity, std::size_t *length) {
            return h_seed_to_text(&raw_, to, capacity, length);
        });
    }
    std::string to_text() const { return try_to_text().value(); }

    /// An h_kind. h_seed_kind
    result<std::uint32_t> try_kind() const {
        std::uint32_t kind = 0;
        const h_status status = h_seed_kind(&raw_, &kind);
        return detail::done(status, kind);
    }
    std::uint32_t kind() const { return try_kind().value(); }

    /// In the format for messages and files.
    bytes as_bytes() const noexcept { return bytes(raw_.bytes, raw_.length); }
    const h_seed_t *get() const noexcept { return &raw_; }

private:
    h_seed_t raw_;
};

/// The right to send one message. May be copied freely.
class ticket {
public:
    ticket() noexcept : raw_{} {}
    explicit ticket(const h_ticket_t &raw) noexcept : raw_(raw) {}

    /// Checks that bytes are a ticket's. h_ticket_capacity
    static result<ticket> try_from_bytes(bytes from) {
        if (from.size() != H_TICKET_BYTES) {
            return failure(H_INVALID, "a ticket has " + std::to_string(H_TICKET_BYTES) +
                                          " bytes, and not " + std::to_string(from.size()));
        }
        ticket read;
        std::memcpy(read.raw_.bytes, from.data(), H_TICKET_BYTES);
        return detail::done(h_ticket_capacity(&read.raw_, nullptr), read);
    }
    static ticket from_bytes(bytes from) { return try_from_bytes(from).value(); }

    /// The number of data bytes that it allows. h_ticket_capacity
    result<std::uint64_t> try_capacity() const {
        std::uint64_t found = 0;
        const h_status status = h_ticket_capacity(&raw_, &found);
        return detail::done(status, found);
    }
    std::uint64_t capacity() const { return try_capacity().value(); }

    /// The node that it leads to. h_ticket_destination
    result<std::uint64_t> try_destination() const {
        std::uint64_t found = 0;
        const h_status status = h_ticket_destination(&raw_, &found);
        return detail::done(status, found);
    }
    std::uint64_t destination() const { return try_destination().value(); }

    /// The same right for the bytes from `offset` on. h_ticket_at
    result<ticket> try_at(std::uint64_t offset) const {
        ticket made;
        const h_status status = h_ticket_at(&raw_, offset, &made.raw_);
        return detail::done(status, made);
    }
    ticket at(std::uint64_t offset) const { return try_at(offset).value(); }

    /// The same right without a notification. h_ticket_silent
    result<ticket> try_silent() const {
        ticket made;
        const h_status status = h_ticket_silent(&raw_, &made.raw_);
        return detail::done(status, made);
    }
    ticket silent() const { return try_silent().value(); }

    /// For helpers that together send one message; this ticket must no longer be used.
    /// h_ticket_split
    result<std::vector<ticket>> try_split(std::size_t count) const {
        std::vector<h_ticket_t> parts(count);
        const h_status status = h_ticket_split(&raw_, parts.data(), count);
        if (status != H_OK) {
            return failure::last(status);
        }
        std::vector<ticket> made;
        made.reserve(count);
        for (const h_ticket_t &part : parts) {
            made.emplace_back(part);
        }
        return made;
    }
    std::vector<ticket> split(std::size_t count) const { return try_split(count).value(); }

    /// In the format for messages and files.
    bytes as_bytes() const noexcept { return bytes(raw_.bytes, H_TICKET_BYTES); }
    const h_ticket_t *get() const noexcept { return &raw_; }

private:
    h_ticket_t raw_;
};

/// A message has arrived.
using notification = h_notification_t;

/// A write has arrived.
using tag = h_tag_t;

/* ---- The lower level ------------------------------------------------------------------------- */

namespace detail {

/// A node, as its parts see it: null once it is destroyed.
struct shared_node {
    h_node_t *raw = nullptr;
};
using node_ref = std::shared_ptr<shared_node>;

inline h_node_t *raw(const node_ref &node) noexcept { return node ? node->raw : nullptr; }

/// A value of a node that its destructor frees: an area, a queue, a slot, a send buffer.
template <class Value, h_status (*Free)(h_node_t *, Value)> class part {
public:
    part(part &&other) noexcept
        : node_(std::exchange(other.node_, nullptr)), value_(other.value_) {}
    part &operator=(part &&other) noexcept {
        if (this != &other) {
            give_back();
            node_ = std::exchange(other.node_, nullptr);
            value_ = other.value_;
        }
        return *this;
    }
    part(const part &) = delete;
    part &operator=(const part &) = delete;
    ~part() { give_back(); }

    /// The value for hamlyn.h.
    Value get() const noexcept { return value_; }

    /// Frees it now. Fails while it is in use; then it stays.
    result<void> try_free() {
        auto freed = done(Free(raw(node_), value_));
        if (freed) {
            node_ = nullptr;
        }
        return freed;
    }
    void free() { try_free().value(); }

protected:
    part(node_ref node, Value value) noexcept : node_(std::move(node)), value_(value) {}

    node_ref node_;
    Value value_;

private:
    // A part in use stays until its node is destroyed.
    void give_back() noexcept {
        if (raw(node_)) {
            (void)Free(raw(node_), value_);
        }
    }
};

} // namespace detail

/// A message area: memory for arriving messages. It stays while slots name it.
class area : public detail::part<h_area_t, h_area_free> {
public:
    /// Its bytes, in place; hamlyn.h says when they change. h_area_data
    result<buffer> try_data() const {
        void *data = nullptr;
        std::size_t size = 0;
        const h_status status = h_area_data(detail::raw(node_), value_, &data, &size);
        return detail::done(status, buffer(data, size));
    }
    buffer data() const { return try_data().value(); }

    /// h_area_read
    result<void> try_read(std::size_t offset, buffer to) const {
        return detail::done(
            h_area_read(detail::raw(node_), value_, offset, to.data(), to.size()));
    }
    void read(std::size_t offset, buffer to) const { try_read(offset, to).value(); }

    /// h_area_write
    result<void> try_write(std::size_t offset, bytes from) {
        return detail::done(
            h_area_write(detail::raw(node_), value_, offset, from.data(), from.size()));
    }
    void write(std::size_t offset, bytes from) { try_write(offset, from).value(); }

private:
    friend class node;
    friend class link;
    using part::part;
};

/// A notification queue.
class queue : public detail::part<h_queue_t, h_queue_free> {
public:
    /// The next notification. h_recv, h_recv_block
    result<notification> try_receive(time_limit limit) {
        notification found;
        h_node_t *node = detail::raw(node_);
        const std::int64_t ns = limit.nanoseconds();
        const h_status status =
            ns == 0 ? h_recv(node, value_, &found) : h_recv_block(node, value_, ns, &found);
        if (status != H_OK) {
            return failure::last(status);
        }
        return found;
    }
    std::optional<notification> receive(time_limit limit) {
        return detail::if_any(try_receive(limit));
    }

private:
    friend class node;
    using part::part;
};

/// Configuration of a slot, besides its area and queue; 0 for the default of h_slot_config_t.
struct slot_config {
    std::uint64_t base = 0;
    std::uint64_t bound = 0;
    std::uint32_t metadata_entries = 0;
    h_mode mode = H_MODE_NORMAL;
    std::uint32_t credit = 0;
};

/// A slot: base and bound of (part of) an area, a key, metadata entries, a queue.
class slot : public detail::part<h_slot_t, h_slot_free> {
public:
    /// Its index, as tickets give it. h_slot_index
    std::uint32_t slot_index() const noexcept { return h_slot_index(value_); }

    /// Whether a notification's `slot` is this one.
    friend bool operator==(const h_slot_t &named, const slot &one) noexcept {
        return named.bits == one.value_.bits;
    }
    friend bool operator!=(const h_slot_t &named, const slot &one) noexcept {
        return !(named == one);
    }

    /// h_ticket
    result<hamlyn::ticket> try_ticket(std::uint32_t entry = 0) const {
        h_ticket_t made;
        const h_status status = h_ticket(detail::raw(node_), value_, entry, &made);
        if (status != H_OK) {
            return failure::last(status);
        }
        return hamlyn::ticket(made);
    }
    hamlyn::ticket ticket(std::uint32_t entry = 0) const { return try_ticket(entry).value(); }

    /// h_fast_ticket
    result<hamlyn::ticket> try_fast_ticket() const {
        h_ticket_t made;
        const h_status status = h_fast_ticket(detail::raw(node_), value_, &made);
        if (status != H_OK) {
            return failure::last(status);
        }
        return hamlyn::ticket(made);
    }
    hamlyn::ticket fast_ticket() const { return try_fast_ticket().value(); }

    /// Makes a new key: all existing tickets are worthless. h_revoke
    result<void> try_revoke() { return detail::done(h_revoke(detail::raw(node_), value_)); }
    void revoke() { try_revoke().value(); }

    /// h_arm
    result<void> try_arm(std::uint32_t entry) {
        return detail::done(h_arm(detail::raw(node_), value_, entry));
    }
    void arm(std::uint32_t entry) { try_arm(entry).value(); }

    /// h_arm_limits
    result<void> try_arm(std::uint32_t entry, std::uint64_t low, std::uint64_t high) {
        return detail::done(h_arm_limits(detail::raw(node_), value_, entry, low, high));
    }
    void arm(std::uint32_t entry, std::uint64_t low, std::uint64_t high) {
        try_arm(entry, low, high).value();
    }

    /// h_close_entry
    result<void> try_close_entry(std::uint32_t entry) {
        return detail::done(h_close_entry(detail::raw(node_), value_, entry));
    }
    void close_entry(std::uint32_t entry) { try_close_entry(entry).value(); }

    /// The user metadata of the message that an entry received last. h_metadata
    result<std::vector<std::byte>> try_metadata(std::uint32_t entry) const {
        return detail::bytes_of(H_METADATA_MAX, [&](void *to, std::size_t max, std::size_t *length) {
            return h_metadata(detail::raw(node_), value_, entry, to, max, length);
        });
    }
    std::vector<std::byte> metadata(std::uint32_t entry) const {
        return try_metadata(entry).value();
    }

private:
    friend class node;
    using part::part;
};

/// Memory from which messages are gathered. It stays while a queued message needs it.
class send_buffer : public detail::part<std::uint8_t, h_send_buffer_free> {
public:
    /// h_send_buffer_write
    result<void> try_write(std::size_t offset, bytes from) {
        return detail::done(
            h_send_buffer_write(detail::raw(node_), value_, offset, from.data(), from.size()));
    }
    void write(std::size_t offset, bytes from) { try_write(offset, from).value(); }

    /// Part of it, for node::post_send.
    h_piece_t piece(std::uint64_t offset, std::uint64_t length) const noexcept {
        h_piece_t made;
        made.tag = value_;
        made.offset = offset;
        made.length = length;
        return made;
    }

private:
    friend class node;
    using part::part;
};

/// Memory that two processes map; its bytes are only ever copied.
class aperture {
public:
    aperture(aperture &&) noexcept = default;
    aperture &operator=(aperture &&) noexcept = default;

    /// The holder's access.
    h_aperture_access access() const noexcept { return access_; }
    h_aperture_t *get() const noexcept { return raw_.get(); }

    /// The number of its bytes. h_aperture_bytes
    result<std::uint64_t> try_size() const {
        std::uint64_t found = 0;
        const h_status status = h_aperture_bytes(get(), &found);
        return detail::done(status, found);
    }
    std::uint64_t size() const { return try_size().value(); }

    /// h_aperture_write
    result<void> try_write(std::uint64_t offset, bytes from) {
        return detail::done(h_aperture_write(get(), offset, from.data(), from.size()));
    }
    void write(std::uint64_t offset, bytes from) { try_write(offset, from).value(); }

    /// Copy the bytes that you need, check the copy, and use only that: the other side may change
    /// them at any time. h_aperture_read
    result<void> try_read(std::uint64_t offset, buffer to) const {
        return detail::done(h_aperture_read(get(), offset, to.data(), to.size()));
    }
    void read(std::uint64_t offset, buffer to) const { try_read(offset, to).value(); }

    /// h_aperture_write_u64
    result<void> try_write_u64(std::uint64_t offset, std::uint64_t value) {
        return detail::done(h_aperture_write_u64(get(), offset, value));
    }
    void write_u64(std::uint64_t offset, std::uint64_t value) {
        try_write_u64(offset, value).value();
    }

    /// h_aperture_read_u64
    result<std::uint64_t> try_read_u64(std::uint64_t offset) const {
        std::uint64_t found = 0;
        const h_status status = h_aperture_read_u64(get(), offset, &found);
        return detail::done(status, found);
    }
    std::uint64_t read_u64(std::uint64_t offset) const { return try_read_u64(offset).value(); }

private:
    friend class link;
    struct free_it {
        void operator()(h_aperture_t *raw) const noexcept { h_aperture_free(raw); }
    };
    aperture(h_aperture_t *raw, h_aperture_access access) noexcept : raw_(raw), access_(access) {}

    std::unique_ptr<h_aperture_t, free_it> raw_;
    h_aperture_access access_;
};

/// A link of a node. A value: it is ended by `disconnect`, or with its node.
class link {
public:
    /// h_greeting
    result<std::vector<std::byte>> try_greeting() const {
        return detail::bytes_of(
            H_GREETING_BYTES_MAX, [this](void *to, std::size_t max, std::size_t *length) {
                return h_greeting(detail::raw(node_), raw_, to, max, length);
            });
    }
    std::vector<std::byte> greeting() const { return try_greeting().value(); }

    /// h_peer
    result<hamlyn::peer> try_peer() const {
        return detail::peer_of(
            [this](h_peer_t *found) { return h_peer(detail::raw(node_), raw_, found); });
    }
    hamlyn::peer peer() const { return try_peer().value(); }

    /// h_explain
    result<std::string> try_explain() const {
        return detail::text_of([this](char *to, std::size_t capacity, std::size_t *length) {
            return h_explain(detail::raw(node_), raw_, to, capacity, length);
        });
    }
    std::string explain() const { return try_explain().value(); }

    /// Ends it; the number of queued messages that have not left and are lost. h_disconnect
    result<std::size_t> try_disconnect() {
        std::size_t unsent = 0;
        const h_status status = h_disconnect(detail::raw(node_), raw_, &unsent);
        return detail::done(status, unsent);
    }
    std::size_t disconnect() { return try_disconnect().value(); }

    /// The number of the new aperture. h_export
    result<std::uint32_t> try_export_aperture(std::uint64_t size, h_aperture_access access) {
        std::uint32_t number = 0;
        const h_status status = h_export(detail::raw(node_), raw_, size, access, &number);
        return detail::done(status, number);
    }
    std::uint32_t export_aperture(std::uint64_t size, h_aperture_access access) {
        return try_export_aperture(size, access).value();
    }

    /// Exports a read-only aperture, which was exported over this link, to the other end of another
    /// link as well; its number there. h_export_also
    result<std::uint32_t> try_export_also(std::uint32_t number, const link &also) {
        std::uint32_t made = 0;
        const h_status status = h_export_also(detail::raw(node_), raw_, number, also.raw_, &made);
        return detail::done(status, made);
    }
    std::uint32_t export_also(std::uint32_t number, const link &also) {
        return try_export_also(number, also).value();
    }

    /// h_aperture_open
    result<aperture> try_open_aperture(std::uint32_t number) const {
        h_aperture_t *raw = nullptr;
        std::uint32_t access = 0;
        const h_status status = h_aperture_open(detail::raw(node_), raw_, number, &access, &raw);
        if (status != H_OK) {
            return failure::last(status);
        }
        return aperture(raw, static_cast<h_aperture_access>(access));
    }
    aperture open_aperture(std::uint32_t number) const { return try_open_aperture(number).value(); }

    /// h_aperture_revoke
    result<void> try_revoke_aperture(std::uint32_t number) {
        return detail::done(h_aperture_revoke(detail::raw(node_), raw_, number));
    }
    void revoke_aperture(std::uint32_t number) { try_revoke_aperture(number).value(); }

    /// h_aperture_reclaim
    result<area> try_reclaim_aperture(std::uint32_t number) {
        h_area_t made;
        const h_status status = h_aperture_reclaim(detail::raw(node_), raw_, number, &made);
        if (status != H_OK) {
            return failure::last(status);
        }
        return area(node_, made);
    }
    area reclaim_aperture(std::uint32_t number) { return try_reclaim_aperture(number).value(); }

    /// h_aperture_release
    result<void> try_release_aperture(std::uint32_t number) {
        return detail::done(h_aperture_release(detail::raw(node_), raw_, number));
    }
    void release_aperture(std::uint32_t number) { try_release_aperture(number).value(); }

    h_link_t get() const noexcept { return raw_; }

private:
    friend class node;
    link(detail::node_ref node, h_link_t raw) noexcept : node_(std::move(node)), raw_(raw) {}

    detail::node_ref node_;
    h_link_t raw_;
};

/// An event that a program may want to know or decide; h_event_t lists the fields of each kind.
struct event {
    h_event_kind kind;
    hamlyn::link link;
    std::uint64_t request;
    std::uint64_t unsent;
    std::uint32_t aperture;
    hamlyn::peer peer;
    /// A greeting, or a reason.
    std::string text;
};

/// Names and values of settings: {{"ring_bytes", "64K"}}. docs/settings.md lists them all.
using settings = std::vector<std::pair<std::string, std::string>>;

namespace detail {

inline result<std::vector<h_setting_t>> raw_settings(const hamlyn::settings &given) {
    std::vector<h_setting_t> raw;
    raw.reserve(given.size());
    for (const auto &[name, value] : given) {
        if (!c_text(name).is_one() || !c_text(value).is_one()) {
            return c_text::refused();
        }
        raw.push_back(h_setting_t{name.c_str(), value.c_str()});
    }
    return raw;
}

} // namespace detail

/// The places of a service, for a look_up_function to add, in the order in which to try them. Valid
/// until that function returns.
class places {
public:
    explicit places(h_places_t *raw) noexcept : raw_(raw) {}

    /// host:port. h_places_add
    result<void> try_add(std::string_view place) {
        const detail::c_text text(place);
        if (!text.is_one()) {
            return detail::c_text::refused();
        }
        return detail::done(h_places_add(raw_, text.get()));
    }
    void add(std::string_view place) { try_add(place).value(); }

    /// The reason why the look-up failed, before it returns false. h_places_fail
    result<void> try_fail(std::string_view why) {
        const detail::c_text text(why);
        if (!text.is_one()) {
            return detail::c_text::refused();
        }
        return detail::done(h_places_fail(raw_, text.get()));
    }
    void fail(std::string_view why) { try_fail(why).value(); }

private:
    h_places_t *raw_;
};

/// Adds the places of a service, and returns whether the look-up succeeded: see h_look_up_t. It
/// runs in threads of the library, several at a time. The time limit is the rest of the connecting
/// call's, negative if there is no limit. An exception counts as a failure, with its text as the
/// reason.
using look_up_function =
    std::function<bool(std::string_view service, std::chrono::nanoseconds limit, places &found)>;

namespace detail {

inline bool call_look_up(void *context, const char *service, std::int64_t limit,
                         h_places_t *raw) {
    places found(raw);
    auto &look_up = *static_cast<look_up_function *>(context);
#if HAMLYN_EXCEPTIONS
    try {
        return look_up(service, std::chrono::nanoseconds(limit), found);
    } catch (const std::exception &thrown) {
        (void)found.try_fail(thrown.what());
    } catch (...) {
        // No exception passes through C.
    }
    return false;
#else
    return look_up(service, std::chrono::nanoseconds(limit), found);
#endif
}

inline void release_look_up(void *context) { delete static_cast<look_up_function *>(context); }

} // namespace detail

/// A process's part in Hamlyn: its interface, links, names and waiting.
class node {
public:
    /// h_node_new
    static result<node> try_make(const hamlyn::settings &given = {}) {
        auto raw = detail::raw_settings(given);
        if (!raw) {
            return raw.why();
        }
        auto made = std::make_shared<detail::shared_node>();
        const h_status status = h_node_new(raw.value().data(), raw.value().size(), &made->raw);
        if (status != H_OK) {
            return failure::last(status);
        }
        return node(std::move(made));
    }
    explicit node(const hamlyn::settings &given = {}) : node(try_make(given).value()) {}

    node(node &&other) noexcept : ref_(std::exchange(other.ref_, nullptr)) {}
    node &operator=(node &&other) noexcept {
        if (this != &other) {
            free();
            ref_ = std::exchange(other.ref_, nullptr);
        }
        return *this;
    }
    node(const node &) = delete;
    node &operator=(const node &) = delete;
    /// Messages that are still queued do not leave; see `close`. h_node_free
    ~node() { free(); }

    h_node_t *get() const noexcept { return detail::raw(ref_); }

    /// Queued messages leave first. Their number, if some do not, is only in h_close. h_close
    result<void> try_close(time_limit limit) {
        h_node_t *raw = ref_ ? std::exchange(ref_->raw, nullptr) : nullptr;
        return detail::done(h_close(raw, limit.nanoseconds(), nullptr));
    }
    void close(time_limit limit) { try_close(limit).value(); }

    /// h_flush
    result<void> try_flush(time_limit limit) {
        return detail::done(h_flush(get(), limit.nanoseconds()));
    }
    void flush(time_limit limit) { try_flush(limit).value(); }

    /// h_node_id
    result<std::uint64_t> try_id() const {
        std::uint64_t found = 0;
        const h_status status = h_node_id(get(), &found);
        return detail::done(status, found);
    }
    std::uint64_t id() const { return try_id().value(); }

    /// h_start_progress
    result<void> try_start_progress() { return detail::done(h_start_progress(get())); }
    void start_progress() { try_start_progress().value(); }

    /// h_stop_progress
    result<void> try_stop_progress() { return detail::done(h_stop_progress(get())); }
    void stop_progress() { try_stop_progress().value(); }

    /// h_reset_watchdog
    result<void> try_reset_watchdog() { return detail::done(h_reset_watchdog(get())); }
    void reset_watchdog() { try_reset_watchdog().value(); }

    /// h_enable
    result<void> try_enable() { return detail::done(h_enable(get())); }
    void enable() { try_enable().value(); }

    /// h_disable
    result<void> try_disable() { return detail::done(h_disable(get())); }
    void disable() { try_disable().value(); }

    /// h_counters
    result<std::vector<std::pair<std::string, std::uint64_t>>> try_counters() const {
        std::vector<h_counter_t> raw(256);
        std::size_t count = 0;
        h_status status = h_counters(get(), raw.data(), raw.size(), &count);
        if (status == H_TOO_LONG) {
            raw.resize(count);
            status = h_counters(get(), raw.data(), raw.size(), &count);
        }
        if (status != H_OK) {
            return failure::last(status);
        }
        std::vector<std::pair<std::string, std::uint64_t>> found;
        found.reserve(count);
        for (std::size_t i = 0; i < count; i++) {
            found.emplace_back(raw[i].name, raw[i].value);
        }
        return found;
    }
    std::vector<std::pair<std::string, std::uint64_t>> counters() const {
        return try_counters().value();
    }

    /// h_counter
    result<std::uint64_t> try_counter(std::string_view name) const {
        const detail::c_text text(name);
        if (!text.is_one()) {
            return detail::c_text::refused();
        }
        std::uint64_t found = 0;
        const h_status status = h_counter(get(), text.get(), &found);
        return detail::done(status, found);
    }
    std::uint64_t counter(std::string_view name) const { return try_counter(name).value(); }

    /// h_listens_at
    result<std::string> try_listens_at() const {
        return detail::text_of([this](char *to, std::size_t capacity, std::size_t *length) {
            return h_listens_at(get(), to, capacity, length);
        });
    }
    std::string listens_at() const { return try_listens_at().value(); }

    /// Sets the function that finds services of other hosts whose names give no place, instead of
    /// the setting `directory`; nullptr: the setting applies. It is kept until its last call has
    /// returned. h_set_directory
    result<void> try_set_directory(look_up_function look_up) {
        if (!look_up) {
            return detail::done(h_set_directory(get(), nullptr, nullptr, nullptr));
        }
        auto kept = std::make_unique<look_up_function>(std::move(look_up));
        const h_status status =
            h_set_directory(get(), detail::call_look_up, kept.get(), detail::release_look_up);
        if (status == H_OK) {
            (void)kept.release();
        }
        return detail::done(status);
    }
    void set_directory(look_up_function look_up) { try_set_directory(std::move(look_up)).value(); }

    /// h_notes
    result<std::string> try_notes() const {
        return detail::text_of([this](char *to, std::size_t capacity, std::size_t *length) {
            return h_notes(get(), to, capacity, length);
        });
    }
    std::string notes() const { return try_notes().value(); }

    /// h_area_new
    result<hamlyn::area> try_area(std::size_t size) {
        h_area_t made;
        const h_status status = h_area_new(get(), size, &made);
        if (status != H_OK) {
            return failure::last(status);
        }
        return hamlyn::area(ref_, made);
    }
    hamlyn::area area(std::size_t size) { return try_area(size).value(); }

    /// Over whole pages at an address of the application's own, which are replaced, and which it
    /// may protect at any time. h_area_over
    result<hamlyn::area> try_area_over(buffer pages) {
        h_area_t made;
        const h_status status = h_area_over(get(), pages.data(), pages.size(), &made);
        if (status != H_OK) {
            return failure::last(status);
        }
        return hamlyn::area(ref_, made);
    }
    hamlyn::area area_over(buffer pages) { return try_area_over(pages).value(); }

    /// Of a memory file that the application maps itself. h_area_of_file
    result<hamlyn::area> try_area_of_file(int descriptor, std::uint64_t offset, std::size_t size) {
        h_area_t made;
        const h_status status = h_area_of_file(get(), descriptor, offset, size, &made);
        if (status != H_OK) {
            return failure::last(status);
        }
        return hamlyn::area(ref_, made);
    }
    hamlyn::area area_of_file(int descriptor, std::uint64_t offset, std::size_t size) {
        return try_area_of_file(descriptor, offset, size).value();
    }

    /// h_queue_new
    result<hamlyn::queue> try_queue(std::uint32_t entries) {
        h_queue_t made;
        const h_status status = h_queue_new(get(), entries, &made);
        if (status != H_OK) {
            return failure::last(status);
        }
        return hamlyn::queue(ref_, made);
    }
    hamlyn::queue queue(std::uint32_t entries) { return try_queue(entries).value(); }

    /// h_slot_new
    result<hamlyn::slot> try_slot(const hamlyn::area &area, const hamlyn::queue &queue,
                                  const slot_config &config = {}) {
        h_slot_config_t raw;
        raw.area = area.get();
        raw.queue = queue.get();
        raw.base = config.base;
        raw.bound = config.bound;
        raw.metadata_entries = config.metadata_entries;
        raw.mode = config.mode;
        raw.credit = config.credit;
        h_slot_t made;
        const h_status status = h_slot_new(get(), &raw, &made);
        if (status != H_OK) {
            return failure::last(status);
        }
        return hamlyn::slot(ref_, made);
    }
    hamlyn::slot slot(const hamlyn::area &area, const hamlyn::queue &queue,
                      const slot_config &config = {}) {
        return try_slot(area, queue, config).value();
    }

    /// h_send_buffer_new
    result<hamlyn::send_buffer> try_send_buffer(std::size_t size) {
        std::uint8_t made = 0;
        const h_status status = h_send_buffer_new(get(), size, &made);
        if (status != H_OK) {
            return failure::last(status);
        }
        return hamlyn::send_buffer(ref_, made);
    }
    hamlyn::send_buffer send_buffer(std::size_t size) { return try_send_buffer(size).value(); }

    /// h_send_buffer_over
    result<hamlyn::send_buffer> try_send_buffer_over(buffer pages) {
        std::uint8_t made = 0;
        const h_status status = h_send_buffer_over(get(), pages.data(), pages.size(), &made);
        if (status != H_OK) {
            return failure::last(status);
        }
        return hamlyn::send_buffer(ref_, made);
    }
    hamlyn::send_buffer send_buffer_over(buffer pages) {
        return try_send_buffer_over(pages).value();
    }

    /// h_send_buffer_of_file
    result<hamlyn::send_buffer> try_send_buffer_of_file(int descriptor, std::uint64_t offset,
                                                        std::size_t size) {
        std::uint8_t made = 0;
        const h_status status = h_send_buffer_of_file(get(), descriptor, offset, size, &made);
        if (status != H_OK) {
            return failure::last(status);
        }
        return hamlyn::send_buffer(ref_, made);
    }
    hamlyn::send_buffer send_buffer_of_file(int descriptor, std::uint64_t offset,
                                            std::size_t size) {
        return try_send_buffer_of_file(descriptor, offset, size).value();
    }

    /// Every permitted process is accepted, and gets `greeting`, often a ticket. h_serve
    result<void> try_serve(std::string_view name, access who, bytes greeting = {}) {
        const detail::c_text text(name);
        if (!text.is_one()) {
            return detail::c_text::refused();
        }
        return detail::done(
            h_serve(get(), text.get(), who.who, who.gid, greeting.data(), greeting.size()));
    }
    void serve(std::string_view name, access who, bytes greeting = {}) {
        try_serve(name, who, greeting).value();
    }

    /// Every request to connect is an event. h_serve_asking
    result<void> try_serve_asking(std::string_view name, access who) {
        const detail::c_text text(name);
        if (!text.is_one()) {
            return detail::c_text::refused();
        }
        return detail::done(h_serve_asking(get(), text.get(), who.who, who.gid));
    }
    void serve_asking(std::string_view name, access who) { try_serve_asking(name, who).value(); }

    /// h_stop_serving
    result<void> try_stop_serving(std::string_view name) {
        const detail::c_text text(name);
        if (!text.is_one()) {
            return detail::c_text::refused();
        }
        return detail::done(h_stop_serving(get(), text.get()));
    }
    void stop_serving(std::string_view name) { try_stop_serving(name).value(); }

    /// h_accept
    result<void> try_accept(std::uint64_t request, bytes greeting = {}) {
        return detail::done(h_accept(get(), request, greeting.data(), greeting.size()));
    }
    void accept(std::uint64_t request, bytes greeting = {}) {
        try_accept(request, greeting).value();
    }

    /// h_refuse
    result<void> try_refuse(std::uint64_t request, std::string_view reason) {
        const detail::c_text text(reason);
        if (!text.is_one()) {
            return detail::c_text::refused();
        }
        return detail::done(h_refuse(get(), request, text.get()));
    }
    void refuse(std::uint64_t request, std::string_view reason) {
        try_refuse(request, reason).value();
    }

    /// h_connect
    result<hamlyn::link> try_connect(std::string_view name, time_limit limit, bytes greeting = {}) {
        const detail::c_text text(name);
        if (!text.is_one()) {
            return detail::c_text::refused();
        }
        h_link_t made;
        const h_status status = h_connect(get(), text.get(), greeting.data(), greeting.size(),
                                          limit.nanoseconds(), &made);
        if (status != H_OK) {
            return failure::last(status);
        }
        return hamlyn::link(ref_, made);
    }
    hamlyn::link connect(std::string_view name, time_limit limit, bytes greeting = {}) {
        return try_connect(name, limit, greeting).value();
    }

    /// The link over which a message came.
    hamlyn::link link(h_link_t raw) const { return hamlyn::link(ref_, raw); }

    /// h_next_event
    result<event> try_next_event(time_limit limit) {
        h_event_t raw;
        const h_status status = h_next_event(get(), limit.nanoseconds(), &raw);
        if (status != H_OK) {
            return failure::last(status);
        }
        const auto *text = reinterpret_cast<const char *>(raw.text);
        return event{raw.kind,     hamlyn::link(ref_, raw.link), raw.request,
                     raw.unsent,   raw.aperture,                 hamlyn::peer::of(raw.peer),
                     std::string(text, raw.text_length)};
    }
    std::optional<event> next_event(time_limit limit) {
        return detail::if_any(try_next_event(limit));
    }

    /// A descriptor for an event loop; the node owns it. h_fd
    result<int> try_fd() const {
        std::int32_t found = -1;
        const h_status status = h_fd(get(), &found);
        return detail::done(status, found);
    }
    int fd() const { return try_fd().value(); }

    /// Whether the loop may wait on the descriptor; if not, look at all objects again.
    /// h_prepare_to_wait
    result<bool> try_prepare_to_wait() {
        bool may_wait = false;
        const h_status status = h_prepare_to_wait(get(), &may_wait);
        return detail::done(status, may_wait);
    }
    bool prepare_to_wait() { return try_prepare_to_wait().value(); }

    /// h_send_msg
    result<void> try_send(const ticket &to, bytes data, time_limit limit, bytes metadata = {}) {
        return detail::done(h_send_msg(get(), to.get(), data.data(), data.size(), metadata.data(),
                                       metadata.size(), limit.nanoseconds(), nullptr));
    }
    void send(const ticket &to, bytes data, time_limit limit, bytes metadata = {}) {
        try_send(to, data, limit, metadata).value();
    }

    /// Without waiting: H_FULL, not now. h_try_send_msg
    result<void> try_send_now(const ticket &to, bytes data, bytes metadata = {}) {
        return detail::done(h_try_send_msg(get(), to.get(), data.data(), data.size(),
                                           metadata.data(), metadata.size(), nullptr));
    }
    /// The same; false: not now.
    bool send_now(const ticket &to, bytes data, bytes metadata = {}) {
        const auto sent = try_send_now(to, data, metadata);
        if (!sent && sent.status() == H_FULL) {
            return false;
        }
        sent.value();
        return true;
    }

    /// h_send_fast
    result<void> try_send_fast(const ticket &to, bytes data, std::uint32_t word, time_limit limit) {
        return detail::done(h_send_fast(get(), to.get(), data.data(), data.size(), word,
                                        limit.nanoseconds(), nullptr));
    }
    void send_fast(const ticket &to, bytes data, std::uint32_t word, time_limit limit) {
        try_send_fast(to, data, word, limit).value();
    }

    /// Queues a message of up to 16 pieces of send buffers. h_post_send
    result<h_handle_t> try_post_send(const ticket &to, const std::vector<h_piece_t> &pieces,
                                     bytes metadata = {}) {
        h_handle_t handle;
        const h_status status = h_post_send(get(), to.get(), pieces.data(), pieces.size(),
                                            metadata.data(), metadata.size(), &handle);
        if (status != H_OK) {
            return failure::last(status);
        }
        return handle;
    }
    h_handle_t post_send(const ticket &to, const std::vector<h_piece_t> &pieces,
                         bytes metadata = {}) {
        return try_post_send(to, pieces, metadata).value();
    }

    /// h_is_reusable
    result<bool> try_is_reusable(const h_handle_t &handle) {
        bool reusable = false;
        const h_status status = h_is_reusable(get(), &handle, &reusable);
        return detail::done(status, reusable);
    }
    bool is_reusable(const h_handle_t &handle) { return try_is_reusable(handle).value(); }

    /// One turn; the number of packets received. h_poll
    result<std::size_t> try_poll() {
        std::size_t taken = 0;
        const h_status status = h_poll(get(), &taken);
        return detail::done(status, taken);
    }
    std::size_t poll() { return try_poll().value(); }

private:
    friend class job;
    explicit node(detail::node_ref made) noexcept : ref_(std::move(made)) {}
    void free() noexcept {
        if (ref_) {
            h_node_free(std::exchange(ref_->raw, nullptr));
        }
    }

    detail::node_ref ref_;
};

/* ---- What all end points have ---------------------------------------------------------------- */

/// Decides whether a process may grow a sender: see h_admission_t. An exception refuses it.
using admission = std::function<bool(const peer &)>;

namespace detail {

/// The functions of an end point of C.
template <class Raw> struct functions;
/// The way to grow an end point that a rank of a job offers.
template <class End> struct grows;

struct nothing_more {};

/// Records that were released before earlier ones: h_stream_release frees all up to one.
struct record_order {
    std::mutex lock;
    std::uint64_t first = 0;
    std::set<std::uint64_t> later;
};

/// An end point, and the objects that it needs, for as long as any reference to it exists.
template <class Raw> struct owned {
    explicit owned(Raw *from) noexcept : raw(from) {}
    owned(const owned &) = delete;
    owned &operator=(const owned &) = delete;
    // The admission function is destroyed after that.
    ~owned() { functions<Raw>::free(raw); }

    Raw *raw;
    std::unique_ptr<admission> admit{};
    typename functions<Raw>::more more{};
};

inline bool call_admission(void *context, const h_peer_t *who) {
#if HAMLYN_EXCEPTIONS
    try {
        return (*static_cast<admission *>(context))(peer::of(*who));
    } catch (...) {
        // No exception passes through C.
        return false;
    }
#else
    return (*static_cast<admission *>(context))(peer::of(*who));
#endif
}

/// The methods of every end point.
template <class Raw> class end_point {
public:
    end_point(end_point &&) noexcept = default;
    end_point &operator=(end_point &&) noexcept = default;
    end_point(const end_point &) = delete;
    end_point &operator=(const end_point &) = delete;

    Raw *get() const noexcept { return own_ ? own_->raw : nullptr; }

    /// Queued messages leave first; then it is freed, whatever the result. Its records, datagrams
    /// and calls must have been destroyed. h_.._close
    result<void> try_close(time_limit limit) {
        Raw *raw = own_ ? std::exchange(own_->raw, nullptr) : nullptr;
        own_ = nullptr;
        return done(functions<Raw>::close(raw, limit.nanoseconds()));
    }
    void close(time_limit limit) { try_close(limit).value(); }

protected:
    explicit end_point(Raw *raw) : own_(std::make_shared<owned<Raw>>(raw)) {}

    std::shared_ptr<owned<Raw>> own_;
};

/// The methods of every receiver.
template <class Raw> class receiver : public end_point<Raw> {
public:
    /// A seed from which a sender can be grown; each call makes another. h_.._seed
    result<hamlyn::seed> try_seed() {
        h_seed_t made;
        const h_status status = functions<Raw>::seed(this->get(), &made);
        if (status != H_OK) {
            return failure::last(status);
        }
        return hamlyn::seed(made);
    }
    hamlyn::seed seed() { return try_seed().value(); }

    /// Lets senders find it by name. h_.._serve
    result<void> try_serve(std::string_view name, access who) {
        const c_text text(name);
        if (!text.is_one()) {
            return c_text::refused();
        }
        return done(functions<Raw>::serve(this->get(), text.get(), who.who, who.gid));
    }
    void serve(std::string_view name, access who) { try_serve(name, who).value(); }

    /// Ends its offers: its names are free at once for another, its seeds are worthless, and
    /// connected senders stay so. h_.._stop_serving
    result<void> try_stop_serving() { return done(functions<Raw>::stop_serving(this->get())); }
    void stop_serving() { try_stop_serving().value(); }

    /// Asks `admit` about each process that wants to grow a sender; nullptr: all permitted
    /// processes are let in again. h_.._set_admission
    result<void> try_set_admission(admission admit) {
        std::unique_ptr<admission> kept;
        if (admit) {
            kept = std::make_unique<admission>(std::move(admit));
        }
        auto set = done(functions<Raw>::set_admission(
            this->get(), kept ? call_admission : nullptr, kept.get()));
        if (set) {
            this->own_->admit = std::move(kept);
        }
        return set;
    }
    void set_admission(admission admit) { try_set_admission(std::move(admit)).value(); }

protected:
    using end_point<Raw>::end_point;
};

/// The methods of every end point with one peer.
template <class Raw> class paired : public end_point<Raw> {
public:
    /// h_.._peer
    result<hamlyn::peer> try_peer() const {
        return peer_of([this](h_peer_t *found) { return functions<Raw>::peer(this->get(), found); });
    }
    hamlyn::peer peer() const { return try_peer().value(); }

    /// The path that the link takes, and the reason. h_.._explain
    result<std::string> try_explain() const {
        return text_of([this](char *to, std::size_t capacity, std::size_t *length) {
            return functions<Raw>::explain(this->get(), to, capacity, length);
        });
    }
    std::string explain() const { return try_explain().value(); }

protected:
    using end_point<Raw>::end_point;
};

/// Calls `make` with room for an end point.
template <class Raw, class Make> result<Raw *> made(Make make) {
    Raw *raw = nullptr;
    const h_status status = make(&raw);
    return done(status, raw);
}

/// The same with a name.
template <class Raw, class Make> result<Raw *> made_by_name(std::string_view name, Make make) {
    const c_text text(name);
    if (!text.is_one()) {
        return c_text::refused();
    }
    return made<Raw>([&](Raw **raw) { return make(text.get(), raw); });
}

/// An end point around a new pointer of C.
template <class End, class Raw> result<End> wrapped(result<Raw *> made) {
    if (!made) {
        return made.why();
    }
    return End(*made);
}

template <> struct functions<h_tagged_receiver_t> {
    using more = nothing_more;
    static constexpr auto free = h_tagged_receiver_free;
    static constexpr auto close = h_tagged_receiver_close;
    static constexpr auto seed = h_tagged_receiver_seed;
    static constexpr auto serve = h_tagged_receiver_serve;
    static constexpr auto stop_serving = h_tagged_receiver_stop_serving;
    static constexpr auto set_admission = h_tagged_receiver_set_admission;
    static constexpr auto offer = h_tagged_receiver_offer;
};
template <> struct functions<h_tagged_sender_t> {
    using more = nothing_more;
    static constexpr auto free = h_tagged_sender_free;
    static constexpr auto close = h_tagged_sender_close;
    static constexpr auto peer = h_tagged_sender_peer;
    static constexpr auto explain = h_tagged_sender_explain;
};
template <> struct functions<h_datagram_receiver_t> {
    using more = nothing_more;
    static constexpr auto free = h_datagram_receiver_free;
    static constexpr auto close = h_datagram_receiver_close;
    static constexpr auto seed = h_datagram_receiver_seed;
    static constexpr auto serve = h_datagram_receiver_serve;
    static constexpr auto stop_serving = h_datagram_receiver_stop_serving;
    static constexpr auto set_admission = h_datagram_receiver_set_admission;
    static constexpr auto offer = h_datagram_receiver_offer;
};
template <> struct functions<h_datagram_sender_t> {
    using more = nothing_more;
    static constexpr auto free = h_datagram_sender_free;
    static constexpr auto close = h_datagram_sender_close;
    static constexpr auto peer = h_datagram_sender_peer;
    static constexpr auto explain = h_datagram_sender_explain;
};
template <> struct functions<h_stream_receiver_t> {
    using more = record_order;
    static constexpr auto free = h_stream_receiver_free;
    static constexpr auto close = h_stream_receiver_close;
    static constexpr auto seed = h_stream_receiver_seed;
    static constexpr auto serve = h_stream_receiver_serve;
    static constexpr auto stop_serving = h_stream_receiver_stop_serving;
    static constexpr auto set_admission = h_stream_receiver_set_admission;
    static constexpr auto offer = h_stream_receiver_offer;
};
template <> struct functions<h_stream_sender_t> {
    using more = nothing_more;
    static constexpr auto free = h_stream_sender_free;
    static constexpr auto close = h_stream_sender_close;
    static constexpr auto peer = h_stream_sender_peer;
    static constexpr auto explain = h_stream_sender_explain;
};
template <> struct functions<h_server_t> {
    using more = nothing_more;
    static constexpr auto free = h_server_free;
    static constexpr auto close = h_server_close;
    static constexpr auto seed = h_server_seed;
    static constexpr auto serve = h_server_serve;
    static constexpr auto stop_serving = h_server_stop_serving;
    static constexpr auto set_admission = h_server_set_admission;
    static constexpr auto offer = h_server_offer;
};
template <> struct functions<h_client_t> {
    using more = nothing_more;
    static constexpr auto free = h_client_free;
    static constexpr auto close = h_client_close;
    static constexpr auto peer = h_client_peer;
    static constexpr auto explain = h_client_explain;
};
template <> struct functions<h_group_t> {
    using more = nothing_more;
    static constexpr auto free = h_group_free;
    static constexpr auto close = h_group_close;
    static constexpr auto seed = h_group_seed;
    static constexpr auto serve = h_group_serve;
    static constexpr auto stop_serving = h_group_stop_serving;
    static constexpr auto set_admission = h_group_set_admission;
    static constexpr auto offer = h_group_offer;
};
template <> struct functions<h_group_member_t> {
    using more = nothing_more;
    static constexpr auto free = h_group_member_free;
    static constexpr auto close = h_group_member_close;
    static constexpr auto peer = h_group_member_peer;
    static constexpr auto explain = h_group_member_explain;
};
template <> struct functions<h_group_helper_t> {
    using more = nothing_more;
    static constexpr auto free = h_group_helper_free;
    static constexpr auto close = h_group_helper_close;
};
template <> struct functions<h_publisher_t> {
    using more = nothing_more;
    static constexpr auto free = h_publisher_free;
    static constexpr auto close = h_publisher_close;
    static constexpr auto seed = h_publisher_seed;
    static constexpr auto serve = h_publisher_serve;
    static constexpr auto stop_serving = h_publisher_stop_serving;
    static constexpr auto set_admission = h_publisher_set_admission;
    static constexpr auto offer = h_publisher_offer;
};
template <> struct functions<h_subscriber_t> {
    using more = nothing_more;
    static constexpr auto free = h_subscriber_free;
    static constexpr auto close = h_subscriber_close;
    static constexpr auto peer = h_subscriber_peer;
    static constexpr auto explain = h_subscriber_explain;
};
template <> struct functions<h_byte_listener_t> {
    using more = nothing_more;
    static constexpr auto free = h_byte_listener_free;
    static constexpr auto close = h_byte_listener_close;
    static constexpr auto seed = h_byte_listener_seed;
    static constexpr auto serve = h_byte_listener_serve;
    static constexpr auto stop_serving = h_byte_listener_stop_serving;
    static constexpr auto set_admission = h_byte_listener_set_admission;
    static constexpr auto offer = h_byte_listener_offer;
};
template <> struct functions<h_byte_stream_t> {
    using more = nothing_more;
    static constexpr auto free = h_byte_stream_free;
    static constexpr auto close = h_byte_stream_close;
    static constexpr auto peer = h_byte_stream_peer;
    static constexpr auto explain = h_byte_stream_explain;
};

} // namespace detail

/* ---- Tagged remote write --------------------------------------------------------------------- */

/// Memory into which several senders write; a tag announces each write.
class tagged_receiver : public detail::receiver<h_tagged_receiver_t> {
public:
    /// `tags` and `senders_max`: 0 for the function's default. h_tagged_receiver_new
    static result<tagged_receiver> try_make(const node &on, std::size_t size,
                                            std::uint32_t tags = 0,
                                            std::uint32_t senders_max = 0) {
        return detail::wrapped<tagged_receiver>(
            detail::made<h_tagged_receiver_t>([&](h_tagged_receiver_t **made) {
                return h_tagged_receiver_new(on.get(), size, tags, senders_max, made);
            }));
    }
    tagged_receiver(const node &on, std::size_t size, std::uint32_t tags = 0,
                    std::uint32_t senders_max = 0)
        : tagged_receiver(try_make(on, size, tags, senders_max).value()) {}

    /// h_tagged_get_tag
    result<tag> try_get_tag(time_limit limit) {
        tag found;
        const h_status status = h_tagged_get_tag(get(), limit.nanoseconds(), &found);
        if (status != H_OK) {
            return failure::last(status);
        }
        return found;
    }
    std::optional<tag> get_tag(time_limit limit) { return detail::if_any(try_get_tag(limit)); }

    /// h_tagged_get_specific_tag
    result<tag> try_get_tag(std::uint32_t wanted, time_limit limit) {
        tag found;
        const h_status status =
            h_tagged_get_specific_tag(get(), wanted, limit.nanoseconds(), &found);
        if (status != H_OK) {
            return failure::last(status);
        }
        return found;
    }
    std::optional<tag> get_tag(std::uint32_t wanted, time_limit limit) {
        return detail::if_any(try_get_tag(wanted, limit));
    }

    /// h_tagged_read
    result<void> try_read(std::size_t offset, buffer to) const {
        return detail::done(h_tagged_read(get(), offset, to.data(), to.size()));
    }
    void read(std::size_t offset, buffer to) const { try_read(offset, to).value(); }

    /// Its bytes, in place; hamlyn.h says when they change. h_tagged_data
    result<bytes> try_data() const {
        const void *data = nullptr;
        std::size_t size = 0;
        const h_status status = h_tagged_data(get(), &data, &size);
        return detail::done(status, bytes(data, size));
    }
    bytes data() const { return try_data().value(); }

    /// h_tagged_receiver_senders
    result<std::size_t> try_senders() const {
        std::size_t count = 0;
        const h_status status = h_tagged_receiver_senders(get(), &count);
        return detail::done(status, count);
    }
    std::size_t senders() const { return try_senders().value(); }

private:
    template <class End, class Raw> friend result<End> detail::wrapped(result<Raw *>);
    using receiver::receiver;
};

/// Sends tagged writes.
class tagged_sender : public detail::paired<h_tagged_sender_t> {
public:
    /// h_tagged_sender_connect
    static result<tagged_sender> try_connect(const node &on, std::string_view name,
                                             time_limit limit) {
        return detail::wrapped<tagged_sender>(detail::made_by_name<h_tagged_sender_t>(
            name, [&](const char *text, h_tagged_sender_t **made) {
                return h_tagged_sender_connect(on.get(), text, limit.nanoseconds(), made);
            }));
    }
    static tagged_sender connect(const node &on, std::string_view name, time_limit limit) {
        return try_connect(on, name, limit).value();
    }

    /// h_tagged_sender_grow
    static result<tagged_sender> try_grow(const node &on, const seed &from, time_limit limit) {
        return detail::wrapped<tagged_sender>(
            detail::made<h_tagged_sender_t>([&](h_tagged_sender_t **made) {
                return h_tagged_sender_grow(on.get(), from.get(), limit.nanoseconds(), made);
            }));
    }
    static tagged_sender grow(const node &on, const seed &from, time_limit limit) {
        return try_grow(on, from, limit).value();
    }

    /// h_tagged_send
    result<void> try_send(std::uint64_t offset, bytes data, std::uint32_t with, time_limit limit) {
        return detail::done(
            h_tagged_send(get(), offset, data.data(), data.size(), with, limit.nanoseconds()));
    }
    void send(std::uint64_t offset, bytes data, std::uint32_t with, time_limit limit) {
        try_send(offset, data, with, limit).value();
    }

    /// Most bytes of one write. h_tagged_bytes_max
    result<std::size_t> try_size_max() const {
        std::size_t found = 0;
        const h_status status = h_tagged_bytes_max(get(), &found, nullptr);
        return detail::done(status, found);
    }
    std::size_t size_max() const { return try_size_max().value(); }

    /// The size of the receiver's area, in bytes. h_tagged_bytes_max
    result<std::uint64_t> try_area_size() const {
        std::uint64_t found = 0;
        const h_status status = h_tagged_bytes_max(get(), nullptr, &found);
        return detail::done(status, found);
    }
    std::uint64_t area_size() const { return try_area_size().value(); }

private:
    template <class End, class Raw> friend result<End> detail::wrapped(result<Raw *>);
    using paired::paired;
};

/* ---- Datagrams ------------------------------------------------------------------------------- */

/// A datagram, in place. Its bytes are stable until it is destroyed; then its receiver is ready for
/// the next one. There is one at a time.
class datagram {
public:
    datagram(datagram &&other) noexcept
        : own_(std::exchange(other.own_, nullptr)), raw_(other.raw_) {}
    datagram &operator=(datagram &&other) noexcept {
        if (this != &other) {
            (void)ready();
            own_ = std::exchange(other.own_, nullptr);
            raw_ = other.raw_;
        }
        return *this;
    }
    datagram(const datagram &) = delete;
    datagram &operator=(const datagram &) = delete;
    /// h_datagram_ready
    ~datagram() { (void)ready(); }

    std::size_t offset() const noexcept { return raw_.offset; }
    std::size_t size() const noexcept { return raw_.length; }
    bool wants_reply() const noexcept { return raw_.wants_reply; }
    h_link_t link() const noexcept { return raw_.link; }

    /// h_datagram_data
    result<bytes> try_data() const {
        const void *data = nullptr;
        std::size_t size = 0;
        const h_status status = h_datagram_data(get(), &data, &size);
        return detail::done(status, bytes(data, size));
    }
    bytes data() const { return try_data().value(); }

    /// The number of bytes copied. h_datagram_read
    result<std::size_t> try_read(buffer to) const {
        std::size_t length = 0;
        const h_status status = h_datagram_read(get(), to.data(), to.size(), &length);
        return detail::done(status, length);
    }
    std::size_t read(buffer to) const { return try_read(to).value(); }

    /// h_datagram_reply
    result<void> try_reply(bytes data, time_limit limit) {
        return detail::done(
            h_datagram_reply(get(), data.data(), data.size(), limit.nanoseconds()));
    }
    void reply(bytes data, time_limit limit) { try_reply(data, limit).value(); }

    /// Releases it, and makes every issued ticket worthless. h_datagram_ready_anew
    result<void> try_ready_anew() {
        const auto made = detail::done(h_datagram_ready_anew(get()));
        if (made) {
            own_ = nullptr;
        }
        return made;
    }
    void ready_anew() { try_ready_anew().value(); }

private:
    friend class datagram_receiver;
    datagram(std::shared_ptr<detail::owned<h_datagram_receiver_t>> own,
             const h_datagram_t &raw) noexcept
        : own_(std::move(own)), raw_(raw) {}

    h_datagram_receiver_t *get() const noexcept { return own_ ? own_->raw : nullptr; }
    h_status ready() noexcept {
        return get() ? h_datagram_ready(get()) : H_OK;
    }

    std::shared_ptr<detail::owned<h_datagram_receiver_t>> own_;
    h_datagram_t raw_;
};

/// Receives datagrams, one at a time.
class datagram_receiver : public detail::receiver<h_datagram_receiver_t> {
public:
    /// h_datagram_receiver_new
    static result<datagram_receiver> try_make(const node &on, std::size_t size) {
        return detail::wrapped<datagram_receiver>(
            detail::made<h_datagram_receiver_t>([&](h_datagram_receiver_t **made) {
                return h_datagram_receiver_new(on.get(), size, made);
            }));
    }
    datagram_receiver(const node &on, std::size_t size)
        : datagram_receiver(try_make(on, size).value()) {}

    /// h_datagram_receive
    result<datagram> try_receive(time_limit limit) {
        h_datagram_t raw;
        const h_status status = h_datagram_receive(get(), limit.nanoseconds(), &raw);
        if (status != H_OK) {
            return failure::last(status);
        }
        return datagram(own_, raw);
    }
    std::optional<datagram> receive(time_limit limit) { return detail::if_any(try_receive(limit)); }

    /// A ticket for the answer to a datagram that is sent. h_datagram_reply_ticket
    result<ticket> try_reply_ticket() {
        h_ticket_t made;
        const h_status status = h_datagram_reply_ticket(get(), &made);
        if (status != H_OK) {
            return failure::last(status);
        }
        return ticket(made);
    }
    ticket reply_ticket() { return try_reply_ticket().value(); }

private:
    template <class End, class Raw> friend result<End> detail::wrapped(result<Raw *>);
    using receiver::receiver;
};

/// Sends datagrams.
class datagram_sender : public detail::paired<h_datagram_sender_t> {
public:
    /// h_datagram_sender_connect
    static result<datagram_sender> try_connect(const node &on, std::string_view name,
                                               time_limit limit) {
        return detail::wrapped<datagram_sender>(detail::made_by_name<h_datagram_sender_t>(
            name, [&](const char *text, h_datagram_sender_t **made) {
                return h_datagram_sender_connect(on.get(), text, limit.nanoseconds(), made);
            }));
    }
    static datagram_sender connect(const node &on, std::string_view name, time_limit limit) {
        return try_connect(on, name, limit).value();
    }

    /// h_datagram_sender_grow
    static result<datagram_sender> try_grow(const node &on, const seed &from, time_limit limit) {
        return detail::wrapped<datagram_sender>(
            detail::made<h_datagram_sender_t>([&](h_datagram_sender_t **made) {
                return h_datagram_sender_grow(on.get(), from.get(), limit.nanoseconds(), made);
            }));
    }
    static datagram_sender grow(const node &on, const seed &from, time_limit limit) {
        return try_grow(on, from, limit).value();
    }

    /// To `offset` of the receiver's area; `reply`: a ticket for the answer, or null.
    /// h_datagram_send
    result<void> try_send(bytes data, time_limit limit, const ticket *reply = nullptr,
                          std::uint64_t offset = 0) {
        return detail::done(h_datagram_send(get(), offset, data.data(), data.size(),
                                            reply ? reply->get() : nullptr,
                                            limit.nanoseconds()));
    }
    void send(bytes data, time_limit limit, const ticket *reply = nullptr, std::uint64_t offset = 0) {
        try_send(data, limit, reply, offset).value();
    }

    /// The size of the receiver's area, in bytes. h_datagram_capacity
    result<std::uint64_t> try_capacity() const {
        std::uint64_t found = 0;
        const h_status status = h_datagram_capacity(get(), &found);
        return detail::done(status, found);
    }
    std::uint64_t capacity() const { return try_capacity().value(); }

private:
    template <class End, class Raw> friend result<End> detail::wrapped(result<Raw *>);
    using paired::paired;
};

/* ---- Streams --------------------------------------------------------------------------------- */

/// Configuration of a stream's receiver; 0 for the default of h_stream_config_t.
struct stream_config {
    std::size_t buffer_bytes = 0;
    std::uint32_t buffers = 0;
    std::uint32_t buffers_max = 0;
    std::size_t record_bytes_max = 0;
    std::uint64_t aperture_bytes = 0;
};

/// A record, in place. Its destructor releases it; its memory is reused when all earlier records
/// are released, too.
class record {
public:
    record(record &&other) noexcept
        : own_(std::exchange(other.own_, nullptr)), raw_(other.raw_) {}
    record &operator=(record &&other) noexcept {
        if (this != &other) {
            release();
            own_ = std::exchange(other.own_, nullptr);
            raw_ = other.raw_;
        }
        return *this;
    }
    record(const record &) = delete;
    record &operator=(const record &) = delete;
    ~record() { release(); }

    /// The number of records before it.
    std::uint64_t number() const noexcept { return raw_.number; }
    std::size_t size() const noexcept { return raw_.length; }
    /// Its bytes, which are stable until it is destroyed; empty if it is volatile.
    bytes data() const noexcept {
        return raw_.is_volatile ? bytes() : bytes(raw_.data, raw_.length);
    }
    /// Whether its sender can still change it: then copy the bytes that you need with `read`, check
    /// the copy, and use only that.
    bool is_volatile() const noexcept { return raw_.is_volatile; }

    /// h_stream_read
    result<void> try_read(std::size_t offset, buffer to) const {
        return detail::done(
            h_stream_read(own_ ? own_->raw : nullptr, raw_.number, offset, to.data(), to.size()));
    }
    void read(std::size_t offset, buffer to) const { try_read(offset, to).value(); }

    /// Releases it now. h_stream_release
    void release() noexcept {
        if (!own_) {
            return;
        }
        const auto own = std::exchange(own_, nullptr);
        auto &order = own->more;
        const std::lock_guard<std::mutex> lock(order.lock);
        if (raw_.number != order.first) {
            order.later.insert(raw_.number);
            return;
        }
        do {
            order.first++;
        } while (order.later.erase(order.first) != 0);
        // Fails only after `close`, which has freed all of them.
        (void)h_stream_release(own->raw, order.first - 1);
    }

private:
    friend class stream_receiver;
    record(std::shared_ptr<detail::owned<h_stream_receiver_t>> own, const h_record_t &raw) noexcept
        : own_(std::move(own)), raw_(raw) {}

    std::shared_ptr<detail::owned<h_stream_receiver_t>> own_;
    h_record_t raw_;
};

/// Receives the records of one sender, in the order of sending.
class stream_receiver : public detail::receiver<h_stream_receiver_t> {
public:
    /// h_stream_receiver_new
    static result<stream_receiver> try_make(const node &on, const stream_config &config = {}) {
        h_stream_config_t raw;
        raw.buffer_bytes = config.buffer_bytes;
        raw.buffers = config.buffers;
        raw.buffers_max = config.buffers_max;
        raw.record_bytes_max = config.record_bytes_max;
        raw.aperture_bytes = config.aperture_bytes;
        return detail::wrapped<stream_receiver>(
            detail::made<h_stream_receiver_t>([&](h_stream_receiver_t **made) {
                return h_stream_receiver_new(on.get(), &raw, made);
            }));
    }
    explicit stream_receiver(const node &on, const stream_config &config = {})
        : stream_receiver(try_make(on, config).value()) {}

    /// H_CLOSED: the sender has sent everything, and all of it was received. H_DIED and H_HUNG_UP:
    /// the sender ended without that. h_stream_receive
    result<record> try_receive(time_limit limit) {
        h_record_t raw;
        const h_status status = h_stream_receive(get(), limit.nanoseconds(), &raw);
        if (status != H_OK) {
            return failure::last(status);
        }
        return record(own_, raw);
    }
    std::optional<record> receive(time_limit limit) { return detail::if_any(try_receive(limit)); }

    /// H_NOTHING: there is no sender yet. h_stream_receiver_peer
    result<hamlyn::peer> try_peer() const {
        return detail::peer_of(
            [this](h_peer_t *found) { return h_stream_receiver_peer(get(), found); });
    }
    std::optional<hamlyn::peer> peer() const { return detail::if_any(try_peer()); }

    /// h_stream_receiver_explain
    result<std::string> try_explain() const {
        return detail::text_of([this](char *to, std::size_t capacity, std::size_t *length) {
            return h_stream_receiver_explain(get(), to, capacity, length);
        });
    }
    std::string explain() const { return try_explain().value(); }

private:
    template <class End, class Raw> friend result<End> detail::wrapped(result<Raw *>);
    using receiver::receiver;
};

/// Sends records. Call `close` after the last one; a sender that is destroyed without it, as after
/// an exception, tells its receiver with H_HUNG_UP that records may be missing.
class stream_sender : public detail::paired<h_stream_sender_t> {
public:
    /// A record to be written in place, and sent. If it is destroyed unsent, nothing of it is sent.
    /// Until then its sender sends and flushes nothing else (H_STATE).
    class loan {
    public:
        loan(loan &&other) noexcept
            : own_(std::exchange(other.own_, nullptr)), data_(std::exchange(other.data_, buffer(nullptr, 0))) {}
        loan &operator=(loan &&other) noexcept {
            if (this != &other) {
                end();
                own_ = std::exchange(other.own_, nullptr);
                data_ = std::exchange(other.data_, buffer(nullptr, 0));
            }
            return *this;
        }
        loan(const loan &) = delete;
        loan &operator=(const loan &) = delete;
        ~loan() { end(); }

        /// Its bytes, to be written; empty once it was sent.
        buffer data() const noexcept { return data_; }

        /// Sends its first `size` bytes. On an error it is as it was, but shortened to them.
        /// h_stream_loan_send
        result<void> try_send(std::size_t size, time_limit limit) {
            if (!own_) {
                return failure(H_STATE, "the record was sent");
            }
            const h_status status = h_stream_loan_send(own_->raw, size, limit.nanoseconds());
            if (status == H_OK) {
                own_ = nullptr;
                data_ = buffer(nullptr, 0);
            } else if (status != H_INVALID && size < data_.size()) {
                data_ = buffer(data_.data(), size);
            }
            return detail::done(status);
        }
        void send(std::size_t size, time_limit limit) { try_send(size, limit).value(); }

        /// Sends all of it.
        result<void> try_send(time_limit limit) { return try_send(data_.size(), limit); }
        void send(time_limit limit) { try_send(limit).value(); }

    private:
        friend class stream_sender;
        loan(std::shared_ptr<detail::owned<h_stream_sender_t>> own, buffer data) noexcept
            : own_(std::move(own)), data_(data) {}
        void end() noexcept {
            if (const auto own = std::exchange(own_, nullptr)) {
                h_stream_loan_free(own->raw);
            }
        }

        std::shared_ptr<detail::owned<h_stream_sender_t>> own_;
        buffer data_;
    };

    /// h_stream_sender_connect
    static result<stream_sender> try_connect(const node &on, std::string_view name,
                                             time_limit limit) {
        return named(on, name, limit, h_stream_sender_connect);
    }
    static stream_sender connect(const node &on, std::string_view name, time_limit limit) {
        return try_connect(on, name, limit).value();
    }

    /// h_stream_sender_grow
    static result<stream_sender> try_grow(const node &on, const seed &from, time_limit limit) {
        return grown(on, from, limit, h_stream_sender_grow);
    }
    static stream_sender grow(const node &on, const seed &from, time_limit limit) {
        return try_grow(on, from, limit).value();
    }

    /// h_stream_sender_connect_with_aperture
    static result<stream_sender> try_connect_with_aperture(const node &on, std::string_view name,
                                                           time_limit limit) {
        return named(on, name, limit, h_stream_sender_connect_with_aperture);
    }
    static stream_sender connect_with_aperture(const node &on, std::string_view name,
                                               time_limit limit) {
        return try_connect_with_aperture(on, name, limit).value();
    }

    /// h_stream_sender_grow_with_aperture
    static result<stream_sender> try_grow_with_aperture(const node &on, const seed &from,
                                                        time_limit limit) {
        return grown(on, from, limit, h_stream_sender_grow_with_aperture);
    }
    static stream_sender grow_with_aperture(const node &on, const seed &from, time_limit limit) {
        return try_grow_with_aperture(on, from, limit).value();
    }

    /// A small record leaves with others, at the latest with `flush`; of a long one a part may have
    /// left when the time limit passes, and only `flush` confirms the rest. h_stream_send
    result<void> try_send(bytes data, time_limit limit) {
        return detail::done(h_stream_send(get(), data.data(), data.size(), limit.nanoseconds()));
    }
    void send(bytes data, time_limit limit) { try_send(data, limit).value(); }

    /// Lends a record of `size` bytes, to be written in place. h_stream_loan
    result<loan> try_lend(std::size_t size, time_limit limit) {
        void *data = nullptr;
        const h_status status = h_stream_loan(get(), size, limit.nanoseconds(), &data);
        if (status != H_OK) {
            return failure::last(status);
        }
        return loan(own_, buffer(data, size));
    }
    loan lend(std::size_t size, time_limit limit) { return try_lend(size, limit).value(); }

    /// h_stream_flush
    result<void> try_flush(time_limit limit) {
        return detail::done(h_stream_flush(get(), limit.nanoseconds()));
    }
    void flush(time_limit limit) { try_flush(limit).value(); }

    /// The longest record. h_stream_bytes_max
    result<std::size_t> try_size_max() const {
        std::size_t found = 0;
        const h_status status = h_stream_bytes_max(get(), &found);
        return detail::done(status, found);
    }
    std::size_t size_max() const { return try_size_max().value(); }

private:
    template <class End, class Raw> friend result<End> detail::wrapped(result<Raw *>);
    using paired::paired;

    template <class Connect>
    static result<stream_sender> named(const node &on, std::string_view name, time_limit limit,
                                       Connect connect) {
        return detail::wrapped<stream_sender>(detail::made_by_name<h_stream_sender_t>(
            name, [&](const char *text, h_stream_sender_t **made) {
                return connect(on.get(), text, limit.nanoseconds(), made);
            }));
    }
    template <class Grow>
    static result<stream_sender> grown(const node &on, const seed &from, time_limit limit,
                                       Grow grow) {
        return detail::wrapped<stream_sender>(
            detail::made<h_stream_sender_t>([&](h_stream_sender_t **made) {
                return grow(on.get(), from.get(), limit.nanoseconds(), made);
            }));
    }
};

/* ---- Requests and replies -------------------------------------------------------------------- */

/// Configuration of a server; 0 for the default of h_server_config_t.
struct server_config {
    std::uint32_t outstanding = 0;
    std::uint32_t request_bytes = 0;
    std::uint64_t request_bytes_max = 0;
    std::uint64_t long_bytes_max = 0;
    std::uint32_t clients_max = 0;
};

/// Configuration of a client; 0 for the default of h_client_config_t.
struct client_config {
    std::uint32_t outstanding = 0;
    std::uint32_t reply_bytes = 0;
    std::uint64_t reply_bytes_max = 0;
};

/// A request, to be answered once, by `reply` or `fail`. If it is destroyed unanswered, its client
/// learns that no reply will come. It keeps its server alive.
class request {
public:
    request(request &&) noexcept = default;
    request &operator=(request &&) noexcept = default;

    h_request_t *get() const noexcept { return raw_.get(); }

    /// Its bytes, which are stable until it is answered or destroyed. h_request_data
    result<bytes> try_data() const {
        const void *data = nullptr;
        std::size_t size = 0;
        const h_status status = h_request_data(get(), &data, &size);
        return detail::done(status, bytes(data, size));
    }
    bytes data() const { return try_data().value(); }

    /// h_request_peer
    result<hamlyn::peer> try_peer() const {
        return detail::peer_of([this](h_peer_t *found) { return h_request_peer(get(), found); });
    }
    hamlyn::peer peer() const { return try_peer().value(); }

    /// h_request_reply
    result<void> try_reply(bytes data, time_limit limit) {
        return answered(
            h_request_reply(get(), data.data(), data.size(), limit.nanoseconds()));
    }
    void reply(bytes data, time_limit limit) { try_reply(data, limit).value(); }

    /// The client gets H_APPLICATION with this code and text. h_request_fail
    result<void> try_fail(std::uint32_t code, std::string_view reason, time_limit limit) {
        const detail::c_text text(reason);
        if (!text.is_one()) {
            return detail::c_text::refused();
        }
        return answered(h_request_fail(get(), code, text.get(), limit.nanoseconds()));
    }
    void fail(std::uint32_t code, std::string_view reason, time_limit limit) {
        try_fail(code, reason, limit).value();
    }

    /// The time for which its caller goes on waiting; empty: unknown. h_request_time_left
    result<std::optional<std::chrono::nanoseconds>> try_time_left() const {
        std::int64_t ns = 0;
        const h_status status = h_request_time_left(get(), &ns);
        std::optional<std::chrono::nanoseconds> left;
        if (ns >= 0) {
            left = std::chrono::nanoseconds(ns);
        }
        return detail::done(status, left);
    }
    std::optional<std::chrono::nanoseconds> time_left() const { return try_time_left().value(); }

    /// h_request_is_cancelled
    result<bool> try_is_cancelled() const {
        bool is_so = false;
        const h_status status = h_request_is_cancelled(get(), &is_so);
        return detail::done(status, is_so);
    }
    bool is_cancelled() const { return try_is_cancelled().value(); }

    /// Declines it now. h_request_free
    void decline() noexcept { raw_ = nullptr; }

private:
    friend class server;
    struct free_it {
        void operator()(h_request_t *raw) const noexcept { h_request_free(raw); }
    };
    explicit request(h_request_t *raw) noexcept : raw_(raw) {}

    result<void> answered(h_status status) {
        auto sent = detail::done(status);
        // With any other status it has been freed.
        if (status != H_INVALID) {
            (void)raw_.release();
        }
        return sent;
    }

    std::unique_ptr<h_request_t, free_it> raw_;
};

/// Receives requests. Any number of threads may receive and reply at once.
class server : public detail::receiver<h_server_t> {
public:
    /// h_server_new
    static result<server> try_make(const node &on, const server_config &config = {}) {
        h_server_config_t raw;
        raw.outstanding = config.outstanding;
        raw.request_bytes = config.request_bytes;
        raw.request_bytes_max = config.request_bytes_max;
        raw.long_bytes_max = config.long_bytes_max;
        raw.clients_max = config.clients_max;
        return detail::wrapped<server>(detail::made<h_server_t>(
            [&](h_server_t **made) { return h_server_new(on.get(), &raw, made); }));
    }
    explicit server(const node &on, const server_config &config = {})
        : server(try_make(on, config).value()) {}

    /// H_CLOSED: the server drains, and no more requests will come. h_server_receive
    result<request> try_receive(time_limit limit) {
        h_request_t *raw = nullptr;
        const h_status status = h_server_receive(get(), limit.nanoseconds(), &raw);
        if (status != H_OK) {
            return failure::last(status);
        }
        return request(raw);
    }
    std::optional<request> receive(time_limit limit) { return detail::if_any(try_receive(limit)); }

    /// Takes nothing new from now on, and does not wait. h_server_begin_drain
    result<void> try_begin_drain() { return detail::done(h_server_begin_drain(get())); }
    void begin_drain() { try_begin_drain().value(); }

    /// The number of requests without a reply at the end. h_server_drain
    result<std::size_t> try_drain(time_limit limit) {
        std::size_t unanswered = 0;
        const h_status status = h_server_drain(get(), limit.nanoseconds(), &unanswered);
        return detail::done(status, unanswered);
    }
    std::size_t drain(time_limit limit) { return try_drain(limit).value(); }

    /// The number of connected clients. h_server_clients
    result<std::size_t> try_clients() const {
        std::size_t count = 0;
        const h_status status = h_server_clients(get(), &count, nullptr);
        return detail::done(status, count);
    }
    std::size_t clients() const { return try_clients().value(); }

    /// The number of clients that were disconnected because they broke the rules. h_server_clients
    result<std::uint64_t> try_misbehaved() const {
        std::uint64_t count = 0;
        const h_status status = h_server_clients(get(), nullptr, &count);
        return detail::done(status, count);
    }
    std::uint64_t misbehaved() const { return try_misbehaved().value(); }

private:
    template <class End, class Raw> friend result<End> detail::wrapped(result<Raw *>);
    using receiver::receiver;
};

/// A reply. Its bytes are stable until it is destroyed.
class reply {
public:
    reply(reply &&) noexcept = default;
    reply &operator=(reply &&) noexcept = default;

    h_reply_t *get() const noexcept { return raw_.get(); }

    /// h_reply_data
    result<bytes> try_data() const {
        const void *data = nullptr;
        std::size_t size = 0;
        const h_status status = h_reply_data(get(), &data, &size);
        return detail::done(status, bytes(data, size));
    }
    bytes data() const { return try_data().value(); }

private:
    friend class call;
    friend class reconnecting_client;
    struct free_it {
        void operator()(h_reply_t *raw) const noexcept { h_reply_free(raw); }
    };
    explicit reply(h_reply_t *raw) noexcept : raw_(raw) {}

    std::unique_ptr<h_reply_t, free_it> raw_;
};

/// A call that was started. If it is destroyed unfinished, its reply will be dropped.
class call {
public:
    call(call &&other) noexcept : own_(std::exchange(other.own_, nullptr)), raw_(other.raw_) {}
    call &operator=(call &&other) noexcept {
        if (this != &other) {
            forget();
            own_ = std::exchange(other.own_, nullptr);
            raw_ = other.raw_;
        }
        return *this;
    }
    call(const call &) = delete;
    call &operator=(const call &) = delete;
    ~call() { forget(); }

    /// The reply. After H_NOTHING and H_TIMED_OUT it may be finished later; after any other result
    /// the call is over. h_client_finish
    result<hamlyn::reply> try_finish(time_limit limit) {
        if (!own_) {
            return failure(H_NO_SUCH, "the call was finished, or forgotten");
        }
        h_reply_t *raw = nullptr;
        const h_status status = h_client_finish(own_->raw, raw_, limit.nanoseconds(), &raw);
        if (status != H_OK) {
            auto why = failure::last(status);
            if (!why.is_not_now()) {
                own_ = nullptr;
            }
            return why;
        }
        own_ = nullptr;
        return hamlyn::reply(raw);
    }
    std::optional<hamlyn::reply> finish(time_limit limit) {
        return detail::if_any(try_finish(limit));
    }

    /// Drops the reply when it comes. h_client_forget
    void forget() noexcept {
        if (const auto own = std::exchange(own_, nullptr)) {
            (void)h_client_forget(own->raw, raw_);
        }
    }

private:
    friend class client;
    call(std::shared_ptr<detail::owned<h_client_t>> own, h_call_t raw) noexcept
        : own_(std::move(own)), raw_(raw) {}

    std::shared_ptr<detail::owned<h_client_t>> own_;
    h_call_t raw_;
};

/// Calls a server. Any number of threads may call at once.
class client : public detail::paired<h_client_t> {
public:
    /// h_client_connect
    static result<client> try_connect(const node &on, std::string_view name, time_limit limit,
                                      const client_config &config = {}) {
        const h_client_config_t raw = of(config);
        return detail::wrapped<client>(
            detail::made_by_name<h_client_t>(name, [&](const char *text, h_client_t **made) {
                return h_client_connect(on.get(), text, &raw, limit.nanoseconds(), made);
            }));
    }
    static client connect(const node &on, std::string_view name, time_limit limit,
                          const client_config &config = {}) {
        return try_connect(on, name, limit, config).value();
    }

    /// h_client_grow
    static result<client> try_grow(const node &on, const seed &from, time_limit limit,
                                   const client_config &config = {}) {
        const h_client_config_t raw = of(config);
        return detail::wrapped<client>(detail::made<h_client_t>([&](h_client_t **made) {
            return h_client_grow(on.get(), from.get(), &raw, limit.nanoseconds(), made);
        }));
    }
    static client grow(const node &on, const seed &from, time_limit limit,
                       const client_config &config = {}) {
        return try_grow(on, from, limit, config).value();
    }

    /// Sends a request. H_DRAINING: the server is about to close and has not taken it, so that it
    /// may be sent to another. h_client_start
    result<hamlyn::call> try_start(bytes request, time_limit limit) {
        h_call_t raw;
        const h_status status = h_client_start(get(), request.data(), request.size(),
                                               limit.nanoseconds(), &raw);
        if (status != H_OK) {
            return failure::last(status);
        }
        return hamlyn::call(own_, raw);
    }
    hamlyn::call start(bytes request, time_limit limit) { return try_start(request, limit).value(); }

    /// Sends a request and waits for the reply, of any length, at most `limit` in all. H_DRAINING
    /// as above; after H_CLOSED and H_DIED the server may or may not have carried out the request.
    /// h_client_start, h_client_finish
    result<hamlyn::reply> try_call(bytes request, time_limit limit) {
        const std::int64_t ns = limit.nanoseconds();
        const auto began = std::chrono::steady_clock::now();
        auto started = try_start(request, limit);
        if (!started) {
            return started.why();
        }
        if (ns == H_FOREVER) {
            return started->try_finish(no_limit);
        }
        const auto taken = std::chrono::steady_clock::now() - began;
        return started->try_finish(std::chrono::nanoseconds(ns) - taken);
    }
    hamlyn::reply call(bytes request, time_limit limit) { return try_call(request, limit).value(); }

    /// The same with room for the reply; the length of the reply. h_client_call
    result<std::size_t> try_call(bytes request, buffer reply, time_limit limit) {
        std::size_t length = 0;
        const h_status status =
            h_client_call(get(), request.data(), request.size(), limit.nanoseconds(),
                          reply.data(), reply.size(), &length);
        return detail::done(status, length);
    }
    std::size_t call(bytes request, buffer reply, time_limit limit) {
        return try_call(request, reply, limit).value();
    }

    /// The same, and the server is told the limit, which is not `no_limit`. h_client_call_within
    result<std::size_t> try_call_within(bytes request, buffer reply, time_limit limit) {
        std::size_t length = 0;
        const h_status status =
            h_client_call_within(get(), request.data(), request.size(), limit.nanoseconds(),
                                 reply.data(), reply.size(), &length);
        return detail::done(status, length);
    }
    std::size_t call_within(bytes request, buffer reply, time_limit limit) {
        return try_call_within(request, reply, limit).value();
    }

    /// The number of calls that may be outstanding. h_client_outstanding_max
    result<std::size_t> try_outstanding_max() const {
        std::size_t found = 0;
        const h_status status = h_client_outstanding_max(get(), &found);
        return detail::done(status, found);
    }
    std::size_t outstanding_max() const { return try_outstanding_max().value(); }

private:
    template <class End, class Raw> friend result<End> detail::wrapped(result<Raw *>);
    using paired::paired;

    template <class End> friend struct detail::grows;
    friend class reconnecting_client;

    static h_client_config_t of(const client_config &config) noexcept {
        h_client_config_t raw;
        raw.outstanding = config.outstanding;
        raw.reply_bytes = config.reply_bytes;
        raw.reply_bytes_max = config.reply_bytes_max;
        return raw;
    }
};

/// The times and number of attempts to connect; 0 for the default of h_reconnect_policy_t.
struct reconnect_policy {
    std::chrono::nanoseconds first_delay{0};
    std::chrono::nanoseconds delay_max{0};
    std::chrono::nanoseconds attempt_limit{0};
    std::uint64_t attempts_max = 0;
    std::chrono::nanoseconds outage_max{0};
    /// Whether calls without a connection fail at once, instead of waiting for the next.
    bool calls_fail = false;
};

/// A client that connects again when its server is gone or drains. Any number of threads may call
/// at once. h_reconnecting_client_t
class reconnecting_client {
public:
    reconnecting_client(reconnecting_client &&) noexcept = default;
    reconnecting_client &operator=(reconnecting_client &&) noexcept = default;

    h_reconnecting_client_t *get() const noexcept { return raw_.get(); }

    /// h_reconnecting_client_connect
    static result<reconnecting_client> try_connect(const node &on, std::string_view name, time_limit limit,
                                                   const reconnect_policy &policy = {},
                                                   const client_config &config = {}) {
        const h_client_config_t of_client = client::of(config);
        h_reconnect_policy_t raw;
        raw.first_delay_ns = of(policy.first_delay);
        raw.delay_max_ns = of(policy.delay_max);
        raw.attempt_limit_ns = of(policy.attempt_limit);
        raw.attempts_max = policy.attempts_max;
        raw.outage_max_ns = of(policy.outage_max);
        raw.calls_fail = policy.calls_fail ? 1 : 0;
        auto made = detail::made_by_name<h_reconnecting_client_t>(
            name, [&](const char *text, h_reconnecting_client_t **to) {
                return h_reconnecting_client_connect(on.get(), text, &of_client, &raw,
                                                     limit.nanoseconds(), to);
            });
        if (!made) {
            return made.why();
        }
        return reconnecting_client(*made);
    }
    static reconnecting_client connect(const node &on, std::string_view name, time_limit limit,
                                       const reconnect_policy &policy = {},
                                       const client_config &config = {}) {
        return try_connect(on, name, limit, policy, config).value();
    }

    /// Sends a request and waits for the reply, through outages. After H_UNREACHABLE it was not
    /// sent; after H_CLOSED, H_DIED and H_MISBEHAVED the server may or may not have carried it out.
    /// h_reconnecting_client_call
    result<hamlyn::reply> try_call(bytes request, time_limit limit, bool is_idempotent = false) {
        h_reply_t *raw = nullptr;
        const h_status status =
            h_reconnecting_client_call(get(), request.data(), request.size(), limit.nanoseconds(),
                                       is_idempotent ? 1 : 0, &raw);
        if (status != H_OK) {
            return failure::last(status);
        }
        return hamlyn::reply(raw);
    }
    hamlyn::reply call(bytes request, time_limit limit, bool is_idempotent = false) {
        return try_call(request, limit, is_idempotent).value();
    }

    /// The state of its connection. h_reconnecting_client_state
    result<h_connection_state> try_state() const {
        h_connection_state found = H_CONNECTED;
        const h_status status = h_reconnecting_client_state(get(), &found, nullptr);
        return detail::done(status, found);
    }
    h_connection_state state() const { return try_state().value(); }

    /// The number of its connection, or of the last one: 1 is the first.
    /// h_reconnecting_client_state
    result<std::uint64_t> try_connections() const {
        h_connection_state state = H_CONNECTED;
        std::uint64_t found = 0;
        const h_status status = h_reconnecting_client_state(get(), &state, &found);
        return detail::done(status, found);
    }
    std::uint64_t connections() const { return try_connections().value(); }

    /// The reason why there is no connection; empty if there is one. h_reconnecting_client_why
    result<std::string> try_why() const {
        return detail::text_of([this](char *to, std::size_t capacity, std::size_t *length) {
            return h_reconnecting_client_why(get(), to, capacity, length);
        });
    }
    std::string why() const { return try_why().value(); }

private:
    struct free_it {
        void operator()(h_reconnecting_client_t *raw) const noexcept {
            h_reconnecting_client_free(raw);
        }
    };
    explicit reconnecting_client(h_reconnecting_client_t *raw) noexcept : raw_(raw) {}

    static std::uint64_t of(std::chrono::nanoseconds time) noexcept {
        return time.count() > 0 ? static_cast<std::uint64_t>(time.count()) : 0;
    }

    std::unique_ptr<h_reconnecting_client_t, free_it> raw_;
};

/* ---- Groups ---------------------------------------------------------------------------------- */

/// A share of a member's part, for a helper to send, once. May be copied freely.
class group_part {
public:
    explicit group_part(const h_part_t &raw) noexcept : raw_(raw) {}

    /// Checks that bytes are a part's. h_part_length
    static result<group_part> try_from_bytes(bytes from) {
        if (from.size() != H_PART_BYTES) {
            return failure(H_INVALID, "a part has " + std::to_string(H_PART_BYTES) +
                                          " bytes, and not " + std::to_string(from.size()));
        }
        group_part read{h_part_t{}};
        std::memcpy(read.raw_.bytes, from.data(), H_PART_BYTES);
        std::size_t length = 0;
        return detail::done(h_part_length(&read.raw_, &length), read);
    }
    static group_part from_bytes(bytes from) { return try_from_bytes(from).value(); }

    /// The number of bytes to be sent for it. h_part_length
    result<std::size_t> try_length() const {
        std::size_t found = 0;
        const h_status status = h_part_length(&raw_, &found);
        return detail::done(status, found);
    }
    std::size_t length() const { return try_length().value(); }

    /// In the format for messages and files.
    bytes as_bytes() const noexcept { return bytes(raw_.bytes, H_PART_BYTES); }
    const h_part_t *get() const noexcept { return &raw_; }

private:
    h_part_t raw_;
};

/// The root of a group: it receives a part from each member in each round.
class group : public detail::receiver<h_group_t> {
public:
    /// `scatter_bytes`: 0 for the same as `part_bytes`. h_group_new
    static result<group> try_make(const node &on, std::uint32_t members, std::size_t part_bytes,
                                  std::size_t scatter_bytes = 0) {
        return detail::wrapped<group>(detail::made<h_group_t>([&](h_group_t **made) {
            return h_group_new(on.get(), members, part_bytes, scatter_bytes, made);
        }));
    }
    group(const node &on, std::uint32_t members, std::size_t part_bytes,
          std::size_t scatter_bytes = 0)
        : group(try_make(on, members, part_bytes, scatter_bytes).value()) {}

    /// A seed for the member in one place. h_group_seed_of
    result<hamlyn::seed> try_seed_of(std::uint32_t member) {
        h_seed_t made;
        const h_status status = h_group_seed_of(get(), member, &made);
        if (status != H_OK) {
            return failure::last(status);
        }
        return hamlyn::seed(made);
    }
    hamlyn::seed seed_of(std::uint32_t member) { return try_seed_of(member).value(); }

    /// Waits for the parts of all members. h_group_gather
    result<void> try_gather(time_limit limit) {
        return detail::done(h_group_gather(get(), limit.nanoseconds()));
    }
    /// false: not within the time limit; arrived parts stay.
    bool gather(time_limit limit) { return detail::if_so(try_gather(limit)); }

    /// Waits for the parts of any `wanted` members. h_group_wait_for
    result<void> try_wait_for(std::uint32_t wanted, time_limit limit) {
        return detail::done(h_group_wait_for(get(), wanted, limit.nanoseconds()));
    }
    /// false: not within the time limit; arrived parts stay.
    bool wait_for(std::uint32_t wanted, time_limit limit) {
        return detail::if_so(try_wait_for(wanted, limit));
    }

    /// The member that made the last call fail. h_group_lost
    result<std::uint32_t> try_lost() const {
        std::uint32_t found = 0;
        const h_status status = h_group_lost(get(), &found);
        return detail::done(status, found);
    }
    std::optional<std::uint32_t> lost() const { return detail::if_any(try_lost()); }

    /// The members that the last call that timed out was not finished with. h_group_missing
    result<std::vector<std::uint32_t>> try_missing() const {
        std::vector<std::uint32_t> found;
        std::size_t count = 0;
        h_status status = H_TOO_LONG;
        // Another thread's call may leave out more.
        for (int tries = 0; status == H_TOO_LONG && tries < 8; tries++) {
            found.resize(count);
            status = h_group_missing(get(), found.data(), found.size(), &count);
        }
        found.resize((std::min)(count, found.size()));
        return detail::done(status, std::move(found));
    }
    /// Empty: the last call left no member out.
    std::vector<std::uint32_t> missing() const {
        return detail::if_any(try_missing()).value_or(std::vector<std::uint32_t>());
    }

    /// The part of one member, which is stable until `next_round`; H_NOTHING: it has not arrived.
    /// h_group_part
    result<bytes> try_part(std::uint32_t member) const {
        const void *data = nullptr;
        std::size_t size = 0;
        const h_status status = h_group_part(get(), member, &data, &size);
        return detail::done(status, bytes(data, size));
    }
    std::optional<bytes> part(std::uint32_t member) const {
        return detail::if_any(try_part(member));
    }

    /// h_group_next_round
    result<void> try_next_round() { return detail::done(h_group_next_round(get())); }
    void next_round() { try_next_round().value(); }

    /// Sends each member its own bytes. h_group_scatter
    result<void> try_scatter(const std::vector<bytes> &parts, time_limit limit) {
        std::vector<h_bytes_t> raw;
        raw.reserve(parts.size());
        for (const bytes &part : parts) {
            raw.push_back(h_bytes_t{part.data(), part.size()});
        }
        return detail::done(h_group_scatter(get(), raw.data(), raw.size(), limit.nanoseconds()));
    }
    void scatter(const std::vector<bytes> &parts, time_limit limit) {
        try_scatter(parts, limit).value();
    }

    /// Sends these members alone their own bytes. h_group_scatter_to
    result<void> try_scatter_to(const std::vector<std::pair<std::uint32_t, bytes>> &parts,
                                time_limit limit) {
        std::vector<std::uint32_t> members;
        std::vector<h_bytes_t> raw;
        for (const auto &[member, part] : parts) {
            members.push_back(member);
            raw.push_back(h_bytes_t{part.data(), part.size()});
        }
        return detail::done(h_group_scatter_to(get(), members.data(), raw.data(), raw.size(),
                                               limit.nanoseconds()));
    }
    void scatter_to(const std::vector<std::pair<std::uint32_t, bytes>> &parts, time_limit limit) {
        try_scatter_to(parts, limit).value();
    }

    /// Waits until the rest of all cut-off messages has left. h_group_flush
    result<void> try_flush(time_limit limit) {
        return detail::done(h_group_flush(get(), limit.nanoseconds()));
    }
    void flush(time_limit limit) { try_flush(limit).value(); }

    /// Sends each member the same bytes. h_group_broadcast
    result<void> try_broadcast(bytes data, time_limit limit) {
        return detail::done(
            h_group_broadcast(get(), data.data(), data.size(), limit.nanoseconds()));
    }
    void broadcast(bytes data, time_limit limit) { try_broadcast(data, limit).value(); }

    /// h_group_barrier
    result<void> try_barrier(time_limit limit) {
        return detail::done(h_group_barrier(get(), limit.nanoseconds()));
    }
    void barrier(time_limit limit) { try_barrier(limit).value(); }

    /// h_group_release
    result<void> try_release(time_limit limit) {
        return detail::done(h_group_release(get(), limit.nanoseconds()));
    }
    void release(time_limit limit) { try_release(limit).value(); }

    /// The number of its places, of members and helpers that have a connection, and the round's
    /// number.
    struct membership {
        std::uint32_t places;
        std::uint32_t joined;
        std::size_t helpers;
        std::uint64_t round;
    };
    /// h_group_members
    result<membership> try_members() const {
        membership found{};
        const h_status status =
            h_group_members(get(), &found.places, &found.joined, &found.helpers, &found.round);
        return detail::done(status, found);
    }
    membership members() const { return try_members().value(); }

    /// The number of parts that make it ready, for wait_any. h_group_set_wanted
    result<void> try_set_wanted(std::uint32_t wanted) {
        return detail::done(h_group_set_wanted(get(), wanted));
    }
    void set_wanted(std::uint32_t wanted) { try_set_wanted(wanted).value(); }

private:
    template <class End, class Raw> friend result<End> detail::wrapped(result<Raw *>);
    using receiver::receiver;
};

/// A member of a group.
class group_member : public detail::paired<h_group_member_t> {
public:
    /// The root may send it up to `receive_bytes` at once. h_group_member_connect
    static result<group_member> try_connect(const node &on, std::string_view name,
                                            std::size_t receive_bytes, time_limit limit) {
        return detail::wrapped<group_member>(detail::made_by_name<h_group_member_t>(
            name, [&](const char *text, h_group_member_t **made) {
                return h_group_member_connect(on.get(), text, receive_bytes, limit.nanoseconds(),
                                              made);
            }));
    }
    static group_member connect(const node &on, std::string_view name, std::size_t receive_bytes,
                                time_limit limit) {
        return try_connect(on, name, receive_bytes, limit).value();
    }

    /// h_group_member_grow
    static result<group_member> try_grow(const node &on, const seed &from,
                                         std::size_t receive_bytes, time_limit limit) {
        return detail::wrapped<group_member>(
            detail::made<h_group_member_t>([&](h_group_member_t **made) {
                return h_group_member_grow(on.get(), from.get(), receive_bytes,
                                           limit.nanoseconds(), made);
            }));
    }
    static group_member grow(const node &on, const seed &from, std::size_t receive_bytes,
                             time_limit limit) {
        return try_grow(on, from, receive_bytes, limit).value();
    }

    /// Its place, the number of places, and the most bytes of a part.
    struct place_in_group {
        std::uint32_t number;
        std::uint32_t places;
        std::size_t part_bytes;
    };
    /// h_group_member_place
    result<place_in_group> try_place() const {
        place_in_group found{};
        const h_status status =
            h_group_member_place(get(), &found.number, &found.places, &found.part_bytes);
        return detail::done(status, found);
    }
    place_in_group place() const { return try_place().value(); }

    /// h_group_member_send
    result<void> try_send(bytes data, time_limit limit) {
        return detail::done(
            h_group_member_send(get(), data.data(), data.size(), limit.nanoseconds()));
    }
    void send(bytes data, time_limit limit) { try_send(data, limit).value(); }

    /// The root's next scatter or broadcast; the number of its bytes. h_group_member_receive
    result<std::size_t> try_receive(buffer to, time_limit limit) {
        std::size_t length = 0;
        const h_status status = h_group_member_receive(get(), limit.nanoseconds(), to.data(),
                                                       to.size(), &length);
        return detail::done(status, length);
    }
    std::optional<std::size_t> receive(buffer to, time_limit limit) {
        return detail::if_any(try_receive(to, limit));
    }

    /// h_group_member_barrier
    result<void> try_barrier(time_limit limit) {
        return detail::done(h_group_member_barrier(get(), limit.nanoseconds()));
    }
    void barrier(time_limit limit) { try_barrier(limit).value(); }

    /// Delegates its part of the round, of `length` bytes, to `count` helpers.
    /// h_group_member_delegate
    result<std::vector<group_part>> try_delegate(std::size_t length, std::size_t count,
                                                 time_limit limit) {
        std::vector<h_part_t> raw(count);
        const h_status status =
            h_group_member_delegate(get(), length, limit.nanoseconds(), raw.data(), count);
        if (status != H_OK) {
            return failure::last(status);
        }
        std::vector<group_part> parts;
        parts.reserve(count);
        for (const h_part_t &part : raw) {
            parts.emplace_back(part);
        }
        return parts;
    }
    std::vector<group_part> delegate(std::size_t length, std::size_t count, time_limit limit) {
        return try_delegate(length, count, limit).value();
    }

    /// h_group_member_send_part
    result<void> try_send(const group_part &part, bytes data, time_limit limit) {
        return detail::done(h_group_member_send_part(get(), part.get(), data.data(), data.size(),
                                                     limit.nanoseconds()));
    }
    void send(const group_part &part, bytes data, time_limit limit) {
        try_send(part, data, limit).value();
    }

private:
    template <class End, class Raw> friend result<End> detail::wrapped(result<Raw *>);
    using paired::paired;
};

/// Sends parts that members of a group have delegated to it.
class group_helper : public detail::end_point<h_group_helper_t> {
public:
    /// h_group_helper_connect
    static result<group_helper> try_connect(const node &on, std::string_view name,
                                            time_limit limit) {
        return detail::wrapped<group_helper>(detail::made_by_name<h_group_helper_t>(
            name, [&](const char *text, h_group_helper_t **made) {
                return h_group_helper_connect(on.get(), text, limit.nanoseconds(), made);
            }));
    }
    static group_helper connect(const node &on, std::string_view name, time_limit limit) {
        return try_connect(on, name, limit).value();
    }

    /// h_group_helper_grow
    static result<group_helper> try_grow(const node &on, const seed &from, time_limit limit) {
        return detail::wrapped<group_helper>(
            detail::made<h_group_helper_t>([&](h_group_helper_t **made) {
                return h_group_helper_grow(on.get(), from.get(), limit.nanoseconds(), made);
            }));
    }
    static group_helper grow(const node &on, const seed &from, time_limit limit) {
        return try_grow(on, from, limit).value();
    }

    /// h_group_helper_send
    result<void> try_send(const group_part &part, bytes data, time_limit limit) {
        return detail::done(h_group_helper_send(get(), part.get(), data.data(), data.size(),
                                                limit.nanoseconds()));
    }
    void send(const group_part &part, bytes data, time_limit limit) {
        try_send(part, data, limit).value();
    }

private:
    template <class End, class Raw> friend result<End> detail::wrapped(result<Raw *>);
    using end_point::end_point;
};

/* ---- Publish and subscribe ------------------------------------------------------------------- */

/// Configuration of a publisher; 0 for the default of h_publish_config_t.
struct publish_config {
    std::size_t short_bytes_max = 0;
    std::size_t sample_bytes_max = 0;
    std::uint32_t loans_max = 0;
    std::uint32_t backlog = 0;
    std::uint32_t history = 0;
    std::uint32_t outstanding_max = 0;
    std::uint32_t subscribers_max = 0;
    /// An h_when_slow, or 0.
    std::uint32_t when_slow = 0;
};

/// Configuration of a subscriber, and its requests; 0 for the default of h_subscribe_config_t.
struct subscribe_config {
    std::uint32_t depth = 0;
    /// An h_when_slow, or 0.
    std::uint32_t when_slow = 0;
    std::uint32_t history = 0;
    std::uint32_t outstanding = 0;
};

namespace detail {

/// A handle that its destructor frees.
template <class Raw, void (*Free)(Raw *)> struct freed {
    void operator()(Raw *raw) const noexcept { Free(raw); }
};
template <class Raw, void (*Free)(Raw *)> using unique = std::unique_ptr<Raw, freed<Raw, Free>>;

} // namespace detail

/// A sample of the publisher's pool, to be written in place and published. Its destructor gives it
/// back.
class loan {
public:
    /// Its bytes; empty once it was published. h_loan_data
    result<buffer> try_data() {
        void *data = nullptr;
        std::size_t size = 0;
        const h_status status = h_loan_data(raw_.get(), &data, &size);
        return detail::done(status, buffer(data, size));
    }
    buffer data() { return try_data().value(); }

    /// h_loan_truncate
    result<void> try_truncate(std::size_t size) {
        return detail::done(h_loan_truncate(raw_.get(), size));
    }
    void truncate(std::size_t size) { try_truncate(size).value(); }

    h_loan_t *get() const noexcept { return raw_.get(); }

private:
    friend class publisher;
    explicit loan(h_loan_t *raw) noexcept : raw_(raw) {}

    detail::unique<h_loan_t, h_loan_free> raw_;
};

/// The counts of a publisher.
using publisher_counts = h_publisher_counts_t;

/// A publisher's view of one subscriber.
struct subscriber_state {
    hamlyn::peer peer;
    h_subscriber_state_t counts;
};

/// Publishes samples. Any number of threads may publish at once. Call `flush` or `drain` after the
/// last sample: if the publisher is destroyed without it, a subscriber that is behind gets
/// H_HUNG_UP.
class publisher : public detail::receiver<h_publisher_t> {
public:
    /// h_publisher_new
    static result<publisher> try_make(const node &on, const publish_config &config = {}) {
        h_publish_config_t raw;
        raw.short_bytes_max = config.short_bytes_max;
        raw.sample_bytes_max = config.sample_bytes_max;
        raw.loans_max = config.loans_max;
        raw.backlog = config.backlog;
        raw.history = config.history;
        raw.outstanding_max = config.outstanding_max;
        raw.subscribers_max = config.subscribers_max;
        raw.when_slow = config.when_slow;
        return detail::wrapped<publisher>(detail::made<h_publisher_t>(
            [&](h_publisher_t **made) { return h_publisher_new(on.get(), &raw, made); }));
    }
    explicit publisher(const node &on, const publish_config &config = {})
        : publisher(try_make(on, config).value()) {}

    /// The number of samples published before it. H_FULL and H_TIMED_OUT: a subscriber that it
    /// waits for has no room; nothing was published. h_publisher_publish
    result<std::uint64_t> try_publish(bytes sample, time_limit limit) {
        std::uint64_t number = 0;
        const h_status status = h_publisher_publish(get(), sample.data(), sample.size(),
                                                    limit.nanoseconds(), &number);
        return detail::done(status, number);
    }
    std::uint64_t publish(bytes sample, time_limit limit) {
        return try_publish(sample, limit).value();
    }

    /// h_publisher_loan
    result<hamlyn::loan> try_loan(std::size_t size) {
        h_loan_t *raw = nullptr;
        const h_status status = h_publisher_loan(get(), size, &raw);
        if (status != H_OK) {
            return failure::last(status);
        }
        return hamlyn::loan(raw);
    }
    hamlyn::loan loan(std::size_t size) { return try_loan(size).value(); }

    /// Without a copy. On an error the loan is as it was. h_publisher_publish_loan
    result<std::uint64_t> try_publish(hamlyn::loan &sample, time_limit limit) {
        std::uint64_t number = 0;
        const h_status status =
            h_publisher_publish_loan(get(), sample.get(), limit.nanoseconds(), &number);
        if (status == H_OK) {
            (void)sample.raw_.release();
        }
        return detail::done(status, number);
    }
    std::uint64_t publish(hamlyn::loan &sample, time_limit limit) {
        return try_publish(sample, limit).value();
    }
    std::uint64_t publish(hamlyn::loan &&sample, time_limit limit) { return publish(sample, limit); }

    /// h_publisher_flush
    result<void> try_flush(time_limit limit) {
        return detail::done(h_publisher_flush(get(), limit.nanoseconds()));
    }
    void flush(time_limit limit) { try_flush(limit).value(); }

    /// To be called before it is destroyed, and its pool with it. h_publisher_drain
    result<void> try_drain(time_limit limit) {
        return detail::done(h_publisher_drain(get(), limit.nanoseconds()));
    }
    void drain(time_limit limit) { try_drain(limit).value(); }

    /// h_publisher_counts
    result<publisher_counts> try_counts() const {
        publisher_counts found;
        const h_status status = h_publisher_counts(get(), &found);
        if (status != H_OK) {
            return failure::last(status);
        }
        return found;
    }
    publisher_counts counts() const { return try_counts().value(); }

    /// h_publisher_subscribers
    result<std::vector<subscriber_state>> try_subscribers() const {
        std::vector<h_subscriber_state_t> raw(16);
        std::size_t count = 0;
        for (;;) {
            const h_status status = h_publisher_subscribers(get(), raw.data(), raw.size(), &count);
            if (status != H_OK) {
                return failure::last(status);
            }
            if (count <= raw.size()) {
                break;
            }
            raw.resize(count);
        }
        std::vector<subscriber_state> found;
        found.reserve(count);
        for (std::size_t i = 0; i < count; i++) {
            found.push_back({hamlyn::peer::of(raw[i].peer), raw[i]});
        }
        return found;
    }
    std::vector<subscriber_state> subscribers() const { return try_subscribers().value(); }

private:
    template <class End, class Raw> friend result<End> detail::wrapped(result<Raw *>);
    using receiver::receiver;
};

/// A sample that has arrived; released by its destructor, also after its subscriber.
class sample {
public:
    /// The number of samples published before it.
    std::uint64_t number() const noexcept { return info_.number; }
    /// The number of samples left out between the previous one and this one.
    std::uint64_t missed() const noexcept { return info_.missed; }
    std::size_t size() const noexcept { return info_.length; }
    /// Its bytes, which are stable until it is destroyed; empty if it is volatile.
    bytes data() const noexcept {
        return info_.is_volatile ? bytes() : bytes(info_.data, info_.length);
    }
    /// Whether its publisher can still change it: then copy the bytes that you need with `read`,
    /// check the copy, and use only that.
    bool is_volatile() const noexcept { return info_.is_volatile; }

    /// h_sample_read
    result<void> try_read(std::size_t offset, buffer to) const {
        return detail::done(h_sample_read(raw_.get(), offset, to.data(), to.size()));
    }
    void read(std::size_t offset, buffer to) const { try_read(offset, to).value(); }

    /// A copy of all its bytes, of either kind.
    result<std::vector<std::byte>> try_copy() const {
        std::vector<std::byte> found(size());
        auto read = try_read(0, found);
        if (!read) {
            return read.why();
        }
        return found;
    }
    std::vector<std::byte> copy() const { return try_copy().value(); }

private:
    friend class subscriber;
    sample(h_sample_t *raw, const h_sample_info_t &info) noexcept : raw_(raw), info_(info) {}

    detail::unique<h_sample_t, h_sample_free> raw_;
    h_sample_info_t info_;
};

/// Receives the samples of one publisher.
class subscriber : public detail::paired<h_subscriber_t> {
public:
    /// h_subscriber_connect
    static result<subscriber> try_connect(const node &on, std::string_view name, time_limit limit,
                                          const subscribe_config &config = {}) {
        const h_subscribe_config_t raw = as_given(config);
        return detail::wrapped<subscriber>(detail::made_by_name<h_subscriber_t>(
            name, [&](const char *text, h_subscriber_t **made) {
                return h_subscriber_connect(on.get(), text, &raw, limit.nanoseconds(), made);
            }));
    }
    static subscriber connect(const node &on, std::string_view name, time_limit limit,
                              const subscribe_config &config = {}) {
        return try_connect(on, name, limit, config).value();
    }

    /// h_subscriber_grow
    static result<subscriber> try_grow(const node &on, const seed &from, time_limit limit,
                                       const subscribe_config &config = {}) {
        const h_subscribe_config_t raw = as_given(config);
        return detail::wrapped<subscriber>(
            detail::made<h_subscriber_t>([&](h_subscriber_t **made) {
                return h_subscriber_grow(on.get(), from.get(), &raw, limit.nanoseconds(), made);
            }));
    }
    static subscriber grow(const node &on, const seed &from, time_limit limit,
                           const subscribe_config &config = {}) {
        return try_grow(on, from, limit, config).value();
    }

    /// H_CLOSED, H_DIED and H_HUNG_UP: the publisher is gone or has disconnected this subscriber,
    /// and all arrived samples were received. h_subscriber_receive, h_sample_info
    result<sample> try_receive(time_limit limit) {
        h_sample_t *raw = nullptr;
        const h_status status = h_subscriber_receive(get(), limit.nanoseconds(), &raw);
        if (status != H_OK) {
            return failure::last(status);
        }
        h_sample_info_t info{};
        (void)h_sample_info(raw, &info);
        return sample(raw, info);
    }
    std::optional<sample> receive(time_limit limit) { return detail::if_any(try_receive(limit)); }

    /// The number of samples left out so far. h_subscriber_missed
    result<std::uint64_t> try_missed() const {
        std::uint64_t found = 0;
        const h_status status = h_subscriber_missed(get(), &found);
        return detail::done(status, found);
    }
    std::uint64_t missed() const { return try_missed().value(); }

private:
    template <class End, class Raw> friend result<End> detail::wrapped(result<Raw *>);
    using paired::paired;

    template <class End> friend struct detail::grows;

    static h_subscribe_config_t as_given(const subscribe_config &config) noexcept {
        h_subscribe_config_t raw;
        raw.depth = config.depth;
        raw.when_slow = config.when_slow;
        raw.history = config.history;
        raw.outstanding = config.outstanding;
        return raw;
    }
};

/* ---- Byte streams ---------------------------------------------------------------------------- */

/// Configuration of a listener, or of a stream that connects; 0 for the default of h_byte_config_t.
struct byte_config {
    std::uint32_t window_bytes = 0;
    std::uint32_t packets = 0;
    std::uint32_t connections_max = 0;
};

namespace detail {

inline h_byte_config_t as_given(const byte_config &config) noexcept {
    h_byte_config_t raw;
    raw.window_bytes = config.window_bytes;
    raw.packets = config.packets;
    raw.connections_max = config.connections_max;
    return raw;
}

} // namespace detail

/// One side of a connection: bytes in both directions, in order. One thread may read while another
/// writes.
class byte_stream : public detail::paired<h_byte_stream_t> {
public:
    /// h_byte_stream_connect
    static result<byte_stream> try_connect(const node &on, std::string_view name, time_limit limit,
                                           const byte_config &config = {}) {
        const h_byte_config_t raw = detail::as_given(config);
        return detail::wrapped<byte_stream>(detail::made_by_name<h_byte_stream_t>(
            name, [&](const char *text, h_byte_stream_t **made) {
                return h_byte_stream_connect(on.get(), text, &raw, limit.nanoseconds(), made);
            }));
    }
    static byte_stream connect(const node &on, std::string_view name, time_limit limit,
                               const byte_config &config = {}) {
        return try_connect(on, name, limit, config).value();
    }

    /// h_byte_stream_grow
    static result<byte_stream> try_grow(const node &on, const seed &from, time_limit limit,
                                        const byte_config &config = {}) {
        const h_byte_config_t raw = detail::as_given(config);
        return detail::wrapped<byte_stream>(
            detail::made<h_byte_stream_t>([&](h_byte_stream_t **made) {
                return h_byte_stream_grow(on.get(), from.get(), &raw, limit.nanoseconds(), made);
            }));
    }
    static byte_stream grow(const node &on, const seed &from, time_limit limit,
                            const byte_config &config = {}) {
        return try_grow(on, from, limit, config).value();
    }

    /// The number of bytes; 0: the other side has shut down its direction. h_byte_stream_read
    result<std::size_t> try_read(buffer to, time_limit limit) {
        std::size_t length = 0;
        const h_status status =
            h_byte_stream_read(get(), limit.nanoseconds(), to.data(), to.size(), &length);
        return detail::done(status, length);
    }
    std::optional<std::size_t> read(buffer to, time_limit limit) {
        return detail::if_any(try_read(to, limit));
    }

    /// The number of bytes for which there was room. h_byte_stream_write
    result<std::size_t> try_write(bytes data, time_limit limit) {
        std::size_t taken = 0;
        const h_status status =
            h_byte_stream_write(get(), data.data(), data.size(), limit.nanoseconds(), &taken);
        return detail::done(status, taken);
    }
    std::size_t write(bytes data, time_limit limit) { return try_write(data, limit).value(); }

    /// Sends all of them. `taken`, if given, gets the number of sent bytes, also on an error.
    /// h_byte_stream_write_all
    result<void> try_write_all(bytes data, time_limit limit, std::size_t *taken = nullptr) {
        return detail::done(
            h_byte_stream_write_all(get(), data.data(), data.size(), limit.nanoseconds(), taken));
    }
    void write_all(bytes data, time_limit limit) { try_write_all(data, limit).value(); }

    /// Ends this side's direction. h_byte_stream_shutdown
    result<void> try_shutdown(time_limit limit) {
        return detail::done(h_byte_stream_shutdown(get(), limit.nanoseconds()));
    }
    void shutdown(time_limit limit) { try_shutdown(limit).value(); }

private:
    friend class byte_listener;
    template <class End, class Raw> friend result<End> detail::wrapped(result<Raw *>);
    using paired::paired;
};

/// Accepts byte streams. Any number of threads may accept.
class byte_listener : public detail::receiver<h_byte_listener_t> {
public:
    /// h_byte_listener_new
    static result<byte_listener> try_make(const node &on, const byte_config &config = {}) {
        const h_byte_config_t raw = detail::as_given(config);
        return detail::wrapped<byte_listener>(detail::made<h_byte_listener_t>(
            [&](h_byte_listener_t **made) { return h_byte_listener_new(on.get(), &raw, made); }));
    }
    explicit byte_listener(const node &on, const byte_config &config = {})
        : byte_listener(try_make(on, config).value()) {}

    /// The next connection, which outlives its listener. h_byte_listener_accept
    result<byte_stream> try_accept(time_limit limit) {
        return detail::wrapped<byte_stream>(
            detail::made<h_byte_stream_t>([&](h_byte_stream_t **made) {
                return h_byte_listener_accept(get(), limit.nanoseconds(), made);
            }));
    }
    std::optional<byte_stream> accept(time_limit limit) { return detail::if_any(try_accept(limit)); }

    /// The number of connections; `misbehaved`, if given, gets the number of disconnected peers.
    /// h_byte_listener_connections
    result<std::size_t> try_connections(std::uint64_t *misbehaved = nullptr) const {
        std::size_t found = 0;
        const h_status status = h_byte_listener_connections(get(), &found, misbehaved);
        return detail::done(status, found);
    }
    std::size_t connections() const { return try_connections().value(); }

private:
    template <class End, class Raw> friend result<End> detail::wrapped(result<Raw *>);
    using receiver::receiver;
};

/* ---- Jobs ------------------------------------------------------------------------------------ */

namespace detail {

template <> struct grows<tagged_sender> {
    using raw = h_tagged_sender_t;
    static h_status from(h_job_t *job, std::uint32_t rank, const char *name, time_limit limit,
                         raw **made) {
        return h_tagged_sender_grow_from(job, rank, name, limit.nanoseconds(), made);
    }
};
template <> struct grows<datagram_sender> {
    using raw = h_datagram_sender_t;
    static h_status from(h_job_t *job, std::uint32_t rank, const char *name, time_limit limit,
                         raw **made) {
        return h_datagram_sender_grow_from(job, rank, name, limit.nanoseconds(), made);
    }
};
template <> struct grows<stream_sender> {
    using raw = h_stream_sender_t;
    static h_status from(h_job_t *job, std::uint32_t rank, const char *name, time_limit limit,
                         raw **made) {
        return h_stream_sender_grow_from(job, rank, name, limit.nanoseconds(), made);
    }
};
template <> struct grows<client> {
    using raw = h_client_t;
    static h_status from(h_job_t *job, std::uint32_t rank, const char *name, time_limit limit,
                         raw **made, const client_config &config = {}) {
        const auto given = client::of(config);
        return h_client_grow_from(job, rank, name, &given, limit.nanoseconds(), made);
    }
};
template <> struct grows<group_member> {
    using raw = h_group_member_t;
    template <class Bytes>
    static h_status from(h_job_t *job, std::uint32_t rank, const char *name, time_limit limit,
                         raw **made, Bytes receive_bytes) {
        return h_group_member_grow_from(job, rank, name, static_cast<std::size_t>(receive_bytes),
                                        limit.nanoseconds(), made);
    }
};
template <> struct grows<group_helper> {
    using raw = h_group_helper_t;
    static h_status from(h_job_t *job, std::uint32_t rank, const char *name, time_limit limit,
                         raw **made) {
        return h_group_helper_grow_from(job, rank, name, limit.nanoseconds(), made);
    }
};
template <> struct grows<subscriber> {
    using raw = h_subscriber_t;
    static h_status from(h_job_t *job, std::uint32_t rank, const char *name, time_limit limit,
                         raw **made, const subscribe_config &config = {}) {
        const auto given = subscriber::as_given(config);
        return h_subscriber_grow_from(job, rank, name, &given, limit.nanoseconds(), made);
    }
};
template <> struct grows<byte_stream> {
    using raw = h_byte_stream_t;
    static h_status from(h_job_t *job, std::uint32_t rank, const char *name, time_limit limit,
                         raw **made, const byte_config &config = {}) {
        const auto given = as_given(config);
        return h_byte_stream_grow_from(job, rank, name, &given, limit.nanoseconds(), made);
    }
};

} // namespace detail

/// The job that this process is a rank of.
class job {
public:
    /// Waits until all ranks have joined. H_TIMED_OUT: some did not. h_job_open
    static result<job> try_open(const hamlyn::settings &given = {}) {
        auto raw = detail::raw_settings(given);
        if (!raw) {
            return raw.why();
        }
        h_job_t *made = nullptr;
        const h_status status = h_job_open(raw.value().data(), raw.value().size(), &made);
        if (status != H_OK) {
            return failure::last(status);
        }
        return job(made);
    }
    explicit job(const hamlyn::settings &given = {}) : job(try_open(given).value()) {}

    /// Null after it was moved from.
    h_job_t *get() const noexcept { return own_.get(); }

    /// h_job_rank
    result<std::uint32_t> try_rank() const { return number(h_job_rank); }
    std::uint32_t rank() const { return try_rank().value(); }

    /// h_job_size
    result<std::uint32_t> try_size() const { return number(h_job_size); }
    std::uint32_t size() const { return try_size().value(); }

    /// h_job_launcher
    result<h_launcher> try_launcher() const {
        auto found = number(h_job_launcher);
        if (!found) {
            return found.why();
        }
        return static_cast<h_launcher>(found.value());
    }
    h_launcher launcher() const { return try_launcher().value(); }

    /// h_job_is_local
    result<bool> try_is_local(std::uint32_t rank) const {
        bool found = false;
        const h_status status = h_job_is_local(get(), rank, &found);
        return detail::done(status, found);
    }
    bool is_local(std::uint32_t rank) const { return try_is_local(rank).value(); }

    /// The node of the job's end points; each call makes another handle to it. h_job_node
    result<hamlyn::node> try_node() const {
        auto made = std::make_shared<detail::shared_node>();
        const h_status status = h_job_node(get(), &made->raw);
        if (status != H_OK) {
            return failure::last(status);
        }
        return hamlyn::node(std::move(made));
    }
    hamlyn::node node() const { return try_node().value(); }

    /// h_job_put
    result<void> try_put(std::string_view name, bytes data) {
        const detail::c_text text(name);
        if (!text.is_one()) {
            return detail::c_text::refused();
        }
        return detail::done(h_job_put(get(), text.get(), data.data(), data.size()));
    }
    void put(std::string_view name, bytes data) { try_put(name, data).value(); }

    /// H_NO_SUCH: the rank put nothing there before the last fence. h_job_get
    result<std::vector<std::byte>> try_get(std::uint32_t rank, std::string_view name) const {
        const detail::c_text text(name);
        if (!text.is_one()) {
            return detail::c_text::refused();
        }
        std::size_t length = 0;
        std::vector<std::byte> found(1024);
        h_status status = h_job_get(get(), rank, text.get(), found.data(), found.size(), &length);
        if (status == H_TOO_LONG) {
            found.resize(length);
            status = h_job_get(get(), rank, text.get(), found.data(), found.size(), &length);
        }
        if (status != H_OK) {
            return failure::last(status);
        }
        found.resize(length);
        return found;
    }
    std::vector<std::byte> get(std::uint32_t rank, std::string_view name) const {
        return try_get(rank, name).value();
    }

    /// H_TIMED_OUT: the fence stays begun. h_job_fence
    result<void> try_fence(time_limit limit) {
        return detail::done(h_job_fence(get(), limit.nanoseconds()));
    }
    void fence(time_limit limit) { try_fence(limit).value(); }

    /// h_job_stream_to
    result<stream_sender> try_stream_to(std::uint32_t rank, time_limit limit) {
        return detail::wrapped<stream_sender>(
            detail::made<h_stream_sender_t>([&](h_stream_sender_t **made) {
                return h_job_stream_to(get(), rank, limit.nanoseconds(), made);
            }));
    }
    stream_sender stream_to(std::uint32_t rank, time_limit limit) {
        return try_stream_to(rank, limit).value();
    }

    /// h_job_stream_from
    result<stream_receiver> try_stream_from(std::uint32_t rank) {
        return detail::wrapped<stream_receiver>(
            detail::made<h_stream_receiver_t>([&](h_stream_receiver_t **made) {
                return h_job_stream_from(get(), rank, made);
            }));
    }
    stream_receiver stream_from(std::uint32_t rank) { return try_stream_from(rank).value(); }

    /// h_job_server
    result<hamlyn::server> try_server() {
        return detail::wrapped<hamlyn::server>(detail::made<h_server_t>(
            [&](h_server_t **made) { return h_job_server(get(), made); }));
    }
    hamlyn::server server() { return try_server().value(); }

    /// h_job_client
    result<hamlyn::client> try_client(std::uint32_t rank, time_limit limit) {
        return detail::wrapped<hamlyn::client>(detail::made<h_client_t>([&](h_client_t **made) {
            return h_job_client(get(), rank, limit.nanoseconds(), made);
        }));
    }
    hamlyn::client client(std::uint32_t rank, time_limit limit) {
        return try_client(rank, limit).value();
    }

    /// Offers a receiver of the job's node to the other ranks. h_.._offer
    template <class Raw>
    result<void> try_offer(const detail::receiver<Raw> &receiver, std::string_view name) {
        const detail::c_text text(name);
        if (!text.is_one()) {
            return detail::c_text::refused();
        }
        return detail::done(detail::functions<Raw>::offer(receiver.get(), get(), text.get()));
    }
    template <class Raw>
    void offer(const detail::receiver<Raw> &receiver, std::string_view name) {
        try_offer(receiver, name).value();
    }

    /// Grows an End, such as a stream_sender, that a rank offers, now or until `limit`. `with`:
    /// further arguments of its own `grow`: a group_member's receive_bytes, a configuration.
    /// h_.._grow_from
    template <class End, class... With>
    result<End> try_grow(std::uint32_t rank, std::string_view name, time_limit limit,
                         const With &...with) {
        using raw = typename detail::grows<End>::raw;
        return detail::wrapped<End>(
            detail::made_by_name<raw>(name, [&](const char *text, raw **made) {
                return detail::grows<End>::from(get(), rank, text, limit, made, with...);
            }));
    }
    template <class End, class... With>
    End grow(std::uint32_t rank, std::string_view name, time_limit limit, const With &...with) {
        return try_grow<End>(rank, name, limit, with...).value();
    }

    /// The same for a sender that writes long records straight into the receiver's memory.
    /// h_stream_sender_grow_from_with_aperture
    result<stream_sender> try_grow_with_aperture(std::uint32_t rank, std::string_view name,
                                                 time_limit limit) {
        return detail::wrapped<stream_sender>(detail::made_by_name<h_stream_sender_t>(
            name, [&](const char *text, h_stream_sender_t **made) {
                return h_stream_sender_grow_from_with_aperture(get(), rank, text,
                                                               limit.nanoseconds(), made);
            }));
    }
    stream_sender grow_with_aperture(std::uint32_t rank, std::string_view name, time_limit limit) {
        return try_grow_with_aperture(rank, name, limit).value();
    }

    /// A secret of the job. h_job_seed_of
    result<seed> try_seed_of(std::uint32_t rank, h_kind kind, std::string_view name) const {
        const detail::c_text text(name);
        if (!text.is_one()) {
            return detail::c_text::refused();
        }
        h_seed_t made;
        const h_status status = h_job_seed_of(get(), rank, kind, text.get(), &made);
        if (status != H_OK) {
            return failure::last(status);
        }
        return hamlyn::seed(made);
    }
    seed seed_of(std::uint32_t rank, h_kind kind, std::string_view name) const {
        return try_seed_of(rank, kind, name).value();
    }

    /// h_job_explain
    result<std::string> try_explain() const {
        return detail::text_of([this](char *to, std::size_t capacity, std::size_t *length) {
            return h_job_explain(get(), to, capacity, length);
        });
    }
    std::string explain() const { return try_explain().value(); }

private:
    struct freed {
        void operator()(h_job_t *raw) const noexcept { h_job_free(raw); }
    };

    explicit job(h_job_t *made) noexcept : own_(made) {}

    result<std::uint32_t> number(h_status (*ask)(h_job_t *, std::uint32_t *)) const {
        std::uint32_t found = 0;
        const h_status status = ask(get(), &found);
        return detail::done(status, found);
    }

    std::unique_ptr<h_job_t, freed> own_;
};

/* ---- Waiting for several, the log ------------------------------------------------------------ */

/// A receiver for wait_any.
class waitable {
public:
    waitable(const tagged_receiver &end) noexcept : waitable(H_KIND_TAGGED, end.get()) {}
    waitable(const datagram_receiver &end) noexcept : waitable(H_KIND_DATAGRAM, end.get()) {}
    waitable(const stream_receiver &end) noexcept : waitable(H_KIND_STREAM, end.get()) {}
    waitable(const server &end) noexcept : waitable(H_KIND_CALL, end.get()) {}
    waitable(const group &end) noexcept : waitable(H_KIND_GROUP, end.get()) {}
    waitable(const subscriber &end) noexcept : waitable(H_KIND_PUBLISH, end.get()) {}
    waitable(const byte_stream &end) noexcept : waitable(H_KIND_BYTES, end.get()) {}
    waitable(const byte_listener &end) noexcept : waitable(H_KIND_BYTE_LISTENER, end.get()) {}

    h_end_point_t get() const noexcept { return raw_; }

private:
    waitable(h_kind kind, void *end) noexcept {
        raw_.kind = kind;
        raw_.end_point = end;
    }

    h_end_point_t raw_{};
};

/// Waits until one of several receivers of one node has something; the index of the first such
/// receiver. h_wait_any
inline result<std::size_t> try_wait_any(const node &on, const std::vector<waitable> &receivers,
                                        time_limit limit) {
    std::vector<h_end_point_t> raw;
    raw.reserve(receivers.size());
    for (const waitable &end : receivers) {
        raw.push_back(end.get());
    }
    std::size_t index = 0;
    const h_status status =
        h_wait_any(on.get(), raw.data(), raw.size(), limit.nanoseconds(), &index);
    return detail::done(status, index);
}
inline std::optional<std::size_t> wait_any(const node &on, const std::vector<waitable> &receivers,
                                           time_limit limit) {
    return detail::if_any(try_wait_any(on, receivers, limit));
}

/// One thing that happened to a link; the texts are valid until the function returns.
struct log_entry {
    h_log_level level;
    std::string_view kind;
    std::optional<std::uint32_t> user;
    std::optional<std::int32_t> process;
    std::string_view service;
    std::string_view reason;
    std::string_view text;
};

/// Gets a log entry for each thing that happens to links, in a thread of the library: see h_log_t.
/// Its exceptions are dropped.
using log_function = std::function<void(const log_entry &)>;

namespace detail {

inline void call_log(void *context, const h_log_entry_t *from) {
    log_entry entry{static_cast<h_log_level>(from->level), from->kind, {}, {}, from->service,
                    from->reason,                          from->text};
    if (from->user >= 0) {
        entry.user = static_cast<std::uint32_t>(from->user);
    }
    if (from->process >= 0) {
        entry.process = static_cast<std::int32_t>(from->process);
    }
#if HAMLYN_EXCEPTIONS
    try {
        (*static_cast<log_function *>(context))(entry);
    } catch (...) {
        // Nothing is thrown through C.
    }
#else
    (*static_cast<log_function *>(context))(entry);
#endif
}

} // namespace detail

/// Sets the function that gets log entries, in all nodes of this process; nullptr: no log. The
/// previous function is kept until the process ends, since it may be running. h_set_log
inline result<void> try_set_log(log_function log) {
    static auto *const kept = new std::vector<std::unique_ptr<log_function>>();
    static std::mutex lock;
    const std::lock_guard<std::mutex> guard(lock);
    if (!log) {
        return detail::done(h_set_log(nullptr, nullptr));
    }
    kept->push_back(std::make_unique<log_function>(std::move(log)));
    return detail::done(h_set_log(detail::call_log, kept->back().get()));
}
inline void set_log(log_function log) { try_set_log(std::move(log)).value(); }

} // namespace hamlyn

#endif
