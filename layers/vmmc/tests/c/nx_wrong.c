/* NX: a program that gives a wrong argument ends with 1 and a sentence that names it and its value. Without an argument:
 * prints the sentences. With a number: makes that call. */
#include <nx.h>
#include <stdio.h>
#include <stdlib.h>

static char byte;

static void node(void) {
    csend(1, &byte, 1, 7, 0);
}
static void type(void) {
    csend(-3, &byte, 1, 0, 0);
}
static void count(void) {
    csend(1, &byte, -5, 0, 0);
}
static void buffer(void) {
    csend(1, NULL, 6, 0, 0);
}
static void selector(void) {
    crecv(1l << 40, &byte, 1);
}
static void node_of_receive(void) {
    crecvx(1, &byte, 1, -2, -1, NULL);
}
static void message_id(void) {
    msgwait(9999);
}
static void count_of_numbers(void) {
    gdsum(NULL, -8, NULL);
}

static const struct {
    void (*call)(void);
    const char *sentence;
} calls[] = {
    {node, "csend: Invalid argument: node: 7"},
    {type, "csend: Invalid argument: type: -3"},
    {count, "csend: Invalid argument: count: -5"},
    {buffer, "csend: Invalid argument: NULL, with the count: 6"},
    {selector, "crecv: Invalid argument: type selector: 1099511627776"},
    {node_of_receive, "crecvx: Invalid argument: node: -2"},
    {message_id, "msgwait: Invalid argument: message id: 9999"},
    {count_of_numbers, "gdsum: Invalid argument: count: -8"},
};

int main(int argc, char **argv) {
    size_t n = sizeof calls / sizeof calls[0], call = argc > 1 ? strtoul(argv[1], NULL, 10) : n;
    for (size_t i = 0; argc < 2 && i < n; i++) printf("%zu nx: node [01]: %s\n", i, calls[i].sentence);
    if (call < n) calls[call].call();
    return 0;
}
