// Aeron over IPC: a publication each way, messages offered from a buffer of the program's own.
//
//   java Peer initiate|respond latency|stream SIZE COUNT WINDOW
//       with -Daeron.dir=DIRECTORY and -Dpeer.channel=CHANNEL
//
// The media driver lives in the initiator and has no thread of its own (ThreadingMode.INVOKER): a
// third thread would have to share a processor with one of the two that spin. The initiator invokes
// it when the limit of a publication has to move: when an offer is refused, and now and then.
//
// peer.h describes the roles and the measured quantities; this program does the same. The receiver
// gets a view of the log; the library's assembler copies messages of several fragments together.
// WINDOW is the limit of fragments for each poll.
//
// The thread that measures is pinned to $PEER_CORE. The virtual machine's other threads (compiler,
// collector) are not, so that they need not share its processor while it warms up.

import io.aeron.Aeron;
import io.aeron.FragmentAssembler;
import io.aeron.Publication;
import io.aeron.Subscription;
import io.aeron.driver.MediaDriver;
import io.aeron.driver.ThreadingMode;
import io.aeron.logbuffer.FragmentHandler;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.agrona.BufferUtil;
import org.agrona.DirectBuffer;
import org.agrona.concurrent.AgentInvoker;
import org.agrona.concurrent.UnsafeBuffer;

public final class Peer {
    /** Its parameters: the sizes of the log and of a fragment matter. */
    private static final String CHANNEL = System.getProperty("peer.channel", "aeron:ipc");
    /** Far fewer messages than a log has room for, and too many for the median to notice. */
    private static final int TRIPS_PER_INVOCATION = 512;
    private static final int EMPTY_POLLS = 10_000;

    /** Of the initiator; null of the respondent. */
    private final AgentInvoker driver;
    private final AgentInvoker client;
    private final boolean initiates;
    private final boolean isLatency;
    private final int size;
    private final long count;
    private final long warmUp;
    private final int window;
    private final Publication out;
    private final Subscription in;
    private final UnsafeBuffer message;
    private final FragmentHandler handler;
    private int invocations;
    private long arrived;
    /** Where what was looked at goes, so that looking is not optimised away. */
    private long seen;

    private Peer(final Aeron aeron, final AgentInvoker driver, final String[] args) {
        this.driver = driver;
        client = aeron.conductorAgentInvoker();
        initiates = args[0].equals("initiate");
        isLatency = args[1].equals("latency");
        size = Integer.parseInt(args[2]);
        count = Long.parseLong(args[3]);
        // Enough for the compiler to have been here.
        warmUp = Math.max(count / 10, isLatency ? 20_000 : Math.min(500_000, (1 << 30) / size));
        window = Integer.parseInt(args[4]);
        message = new UnsafeBuffer(BufferUtil.allocateDirectAligned(size, 4096));
        message.setMemory(0, size, (byte) 7);
        out = aeron.addExclusivePublication(CHANNEL, initiates ? 1 : 2);
        in = aeron.addSubscription(CHANNEL, initiates ? 2 : 1);
        final int fragment = out.maxPayloadLength();
        final FragmentHandler one = (buffer, offset, length, header) -> {
            if (length <= fragment) {
                lookAt(buffer, offset, length);
            }
            arrived++;
        };
        handler = size <= fragment ? one : new FragmentAssembler(one, size);
    }

    private void lookAt(final DirectBuffer buffer, final int offset, final int length) {
        long sum = 0;
        for (int i = 0; i < length; i += 64) {
            sum += buffer.getByte(offset + i);
        }
        seen += sum;
    }

    private void send(final int length) {
        while (true) {
            final long result = out.offer(message, 0, length);
            if (result > 0) {
                return;
            }
            if (result == Publication.CLOSED || result == Publication.MAX_POSITION_EXCEEDED) {
                throw new IllegalStateException("offer: " + result);
            }
            invoke();
        }
    }

    /** The driver's turn, if it lives here, and sometimes the client's own. */
    private void invoke() {
        if (driver != null) {
            driver.invoke();
        }
        if (driver == null || (++invocations & 63) == 0) {
            client.invoke();
        }
    }

    /** Returns when `n` messages have arrived. */
    private void receive(final long n) {
        int empty = 0;
        while (arrived < n) {
            if (in.poll(handler, window) == 0 && ++empty == EMPTY_POLLS) {
                empty = 0;
                invoke();
            }
        }
        arrived -= n;
    }

    private void run() {
        while (!out.isConnected() || !in.isConnected()) {
            invoke();
            Thread.onSpinWait();
        }
        final long trips = warmUp + count;
        if (isLatency && initiates) {
            final long[] ends = new long[(int) trips + 1];
            ends[0] = System.nanoTime();
            for (int i = 1; i <= trips; i++) {
                send(size);
                receive(1);
                if (i % TRIPS_PER_INVOCATION == 0) {
                    invoke();
                }
                ends[i] = System.nanoTime();
            }
            final TreeMap<Long, Long> times = new TreeMap<>();
            for (int i = (int) warmUp + 1; i <= trips; i++) {
                times.merge(ends[i] - ends[i - 1], 1L, Long::sum);
            }
            final StringBuilder text = new StringBuilder("{\"round_trips_ns\":[");
            times.forEach((ns, n) -> text.append("[" + ns + "," + n + "],"));
            text.setLength(text.length() - 1);
            System.out.println(text.append("]}"));
        } else if (isLatency) {
            for (long i = 0; i < trips; i++) {
                receive(1);
                send(size);
            }
        } else if (initiates) {
            long from = 0;
            for (int part = 0; part < 2; part++) {
                from = System.nanoTime();
                for (long left = part == 0 ? warmUp : count; left > 0; left--) {
                    send(size);
                }
                receive(1);
            }
            final double seconds = (System.nanoTime() - from) / 1e9;
            System.out.println("{\"count\":" + count + ",\"seconds\":" + seconds + "}");
        } else {
            for (int part = 0; part < 2; part++) {
                receive(part == 0 ? warmUp : count);
                send(1);
            }
        }
    }

    private static void pin(final String core) throws Exception {
        final Path thread = Files.readSymbolicLink(Path.of("/proc/thread-self"));
        final Process taskset =
            new ProcessBuilder("taskset", "-pc", core, thread.getFileName().toString())
                .redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.DISCARD).start();
        if (!taskset.waitFor(5, TimeUnit.SECONDS) || taskset.exitValue() != 0) {
            throw new IllegalStateException("taskset cannot pin to processor " + core);
        }
    }

    public static void main(final String[] args) throws Exception {
        // The respondent waits for the driver of the initiator.
        final MediaDriver driver = !args[0].equals("initiate") ? null
            : MediaDriver.launch(new MediaDriver.Context()
                .dirDeleteOnStart(true)
                .dirDeleteOnShutdown(true)
                .termBufferSparseFile(false)
                .threadingMode(ThreadingMode.INVOKER));
        final AgentInvoker invoker = driver == null ? null : driver.sharedAgentInvoker();
        final Aeron.Context context = new Aeron.Context()
            .useConductorAgentInvoker(true)
            .driverAgentInvoker(invoker);
        try (Aeron aeron = Aeron.connect(context)) {
            pin(System.getenv("PEER_CORE"));
            final Peer peer = new Peer(aeron, invoker, args);
            peer.run();
            // Neither closes before the other has taken all its messages.
            Thread.sleep(50);
            if (peer.seen == 1) {
                System.err.println("peer: unlikely");
            }
        } finally {
            if (driver != null) {
                driver.close();
            }
        }
    }
}
