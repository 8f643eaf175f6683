/* Copies a file along all nodes over stream sockets: node 0 makes it, each passes it on, the last one checks it.
 *   hamlyn run -n 4 -- ./copy [MEGABYTES]
 */
#include <fm.h>
#include <fm_sockets.h>
#include <stdio.h>
#include <stdlib.h>

enum { PORT = 7, BYTES = 65536 };

static long check(const char *what, long code)
{
    if (code < 0) {
        fprintf(stderr, "%s: %s\n", what, fms_error_text((int)code));
        exit(1);
    }
    return code;
}

static unsigned char byte_at(unsigned long at) { return (unsigned char)(at * 2654435761u >> 13); }

int main(int argc, char **argv)
{
    static unsigned char buffer[BYTES];
    unsigned long all = (argc > 1 ? strtoul(argv[1], NULL, 10) : 8) << 20, done = 0, wrong = 0;
    int is_first, is_last, from = 0, to = 0;
    fms_figures figures;
    FM_figures fm;

    check("fms_start", fms_start());
    is_first = FM_nodeid == 0;
    is_last = FM_nodeid + 1 == FM_numnodes;
    if (!is_first) {
        int listener = (int)check("fms_listen", fms_listen(PORT));

        from = (int)check("fms_accept", fms_accept(listener, 60000));
        fms_close(listener);
    }
    if (!is_last)
        to = (int)check("fms_connect", fms_connect(FM_nodeid + 1, PORT, 60000));
    while (done < all) {
        long bytes = (long)(all - done < BYTES ? all - done : BYTES);

        for (long at = 0; is_first && at < bytes; at++)
            buffer[at] = byte_at(done + (unsigned long)at);
        if (!is_first && (bytes = check("fms_recv", fms_recv(from, buffer, BYTES))) == 0)
            break;
        if (!is_last && check("fms_send", fms_send(to, buffer, (size_t)bytes)) != bytes)
            break;
        for (long at = 0; is_last && at < bytes; at++)
            wrong += buffer[at] != byte_at(done + (unsigned long)at);
        done += (unsigned long)bytes;
    }
    fms_get_figures(&figures);
    FM_get_figures(&fm);
    if (is_last)
        printf("copied %lu of %lu bytes over %lu nodes, %lu wrong; %llu straight (%llu in one copy), %llu through a buffer\n", done, all,
               FM_numnodes, wrong, figures.bytes_straight, fm.bytes_direct, figures.bytes_buffered);
    fms_finish();
    return done != all || wrong != 0;
}
