/* Fast Messages 1.x on Hamlyn (the paper's Table 1): a message is one buffer, its handler runs when all of it has
 * come, and FM_extract takes all that is pending. A program includes this header or fm.h, not both. The calls that
 * are the same in both are described in fm.h.
 */
#ifndef FM1_H
#define FM1_H

#ifdef __cplusplus
extern "C" {
#endif

#ifdef FM_H
#error "include fm.h or fm1.h, not both"
#endif

/* A handler of 1.x, whose type the paper does not give (ours): `buf` is valid until it returns. */
typedef void FM_handler(const void *buf, unsigned bytes, unsigned sender);

#define FM_MAX_HANDLERS 1024
#define FM_ANY_ID ((unsigned long)-1)

extern unsigned long FM_nodeid;
extern unsigned long FM_numnodes;

void FM_initialize(void);
void FM_finalize(void);
int FM_set_parameter(int parameter, int value);

/* The identifiers are those of fm.h: one program uses each for a handler of one kind. */
unsigned long FM1_register_handler(unsigned long id, FM_handler *handler);
/* At most 64 MiB: the receiver holds a message whole, and throws a longer one away (ours). */
int FM1_send(unsigned long dest, unsigned long handler, const void *buf, unsigned long bytes);
int FM_send_4(unsigned long dest, unsigned long handler, unsigned i0, unsigned i1, unsigned i2, unsigned i3);
int FM1_extract(void);
/* The names of the paper. The library has others for them, since FM_extract is in 2.x, too. */
#define FM_register_handler FM1_register_handler
#define FM_send FM1_send
#define FM_extract FM1_extract

int FM_wait(int ms);
int FM_has_left(unsigned long node);
int FM_error(void);
const char *FM_error_text(void);

#ifdef __cplusplus
}
#endif
#endif
