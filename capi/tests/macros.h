/* Macros of others that stand in the way of a C or C++ header: included before hamlyn.h and hamlyn.hpp by
 * capi/test.sh, which then compiles and runs the tests of both.
 *
 * The real headers are included where they are installed. The list below them defines the same names
 * so that an identifier of ours that is one of them does not compile. The standard library's headers come
 * first: they are the compiler's to keep working.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef __cplusplus
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>
#if __cplusplus >= 202002L
#include <span>
#endif
#endif

/* libc and the kernel. */
#include <arpa/inet.h>
#include <complex.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/param.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __has_include
#if __has_include(<curses.h>)
#include <curses.h>
#endif
#if __has_include(<X11/Xlib.h>) && __has_include(<X11/Xutil.h>) && __has_include(<X11/Xos.h>)
#include <X11/Xlib.h>
#include <X11/Xos.h>
#include <X11/Xutil.h>
#endif
#if defined(__cplusplus) && __has_include(<qglobal.h>)
#include <qglobal.h>
#include <qobjectdefs.h>
#endif
#endif

#define REFUSED_BY_A_MACRO (;)

/* Libc, where a dialect or another version defines them. */
#undef linux
#define linux REFUSED_BY_A_MACRO
#undef unix
#define unix REFUSED_BY_A_MACRO
#undef sun
#define sun REFUSED_BY_A_MACRO
#undef major
#define major(a) REFUSED_BY_A_MACRO
#undef minor
#define minor(a) REFUSED_BY_A_MACRO
#undef makedev
#define makedev(a, b) REFUSED_BY_A_MACRO
#undef imaginary
#define imaginary REFUSED_BY_A_MACRO
#undef index
#define index(a, b) REFUSED_BY_A_MACRO
#undef rindex
#define rindex(a, b) REFUSED_BY_A_MACRO
#undef isascii
#define isascii REFUSED_BY_A_MACRO
#undef toascii
#define toascii REFUSED_BY_A_MACRO
#undef DOMAIN
#define DOMAIN REFUSED_BY_A_MACRO
#undef SING
#define SING REFUSED_BY_A_MACRO
#undef OVERFLOW
#define OVERFLOW REFUSED_BY_A_MACRO
#undef UNDERFLOW
#define UNDERFLOW REFUSED_BY_A_MACRO
#undef PLOSS
#define PLOSS REFUSED_BY_A_MACRO
#undef TLOSS
#define TLOSS REFUSED_BY_A_MACRO
#undef PAGE_SIZE
#define PAGE_SIZE REFUSED_BY_A_MACRO
#undef sigmask
#define sigmask REFUSED_BY_A_MACRO
#undef si_pid
#define si_pid REFUSED_BY_A_MACRO
#undef sa_handler
#define sa_handler REFUSED_BY_A_MACRO
#undef st_atime
#define st_atime REFUSED_BY_A_MACRO
#undef st_mtime
#define st_mtime REFUSED_BY_A_MACRO
#undef s_addr
#define s_addr REFUSED_BY_A_MACRO
#undef s6_addr
#define s6_addr REFUSED_BY_A_MACRO
#undef BIG_ENDIAN
#define BIG_ENDIAN REFUSED_BY_A_MACRO
#undef LITTLE_ENDIAN
#define LITTLE_ENDIAN REFUSED_BY_A_MACRO
#undef PI
#define PI REFUSED_BY_A_MACRO

/* Qt. */
#undef forever
#define forever REFUSED_BY_A_MACRO
#undef foreach
#define foreach(a, b) REFUSED_BY_A_MACRO
#undef signals
#define signals REFUSED_BY_A_MACRO
#undef slots
#define slots REFUSED_BY_A_MACRO
#undef emit
#define emit REFUSED_BY_A_MACRO
#undef Q_OBJECT
#define Q_OBJECT REFUSED_BY_A_MACRO
#undef Q_SIGNALS
#define Q_SIGNALS REFUSED_BY_A_MACRO
#undef Q_SLOTS
#define Q_SLOTS REFUSED_BY_A_MACRO
#undef Q_EMIT
#define Q_EMIT REFUSED_BY_A_MACRO
#undef Q_FOREVER
#define Q_FOREVER REFUSED_BY_A_MACRO
#undef Q_FOREACH
#define Q_FOREACH REFUSED_BY_A_MACRO
#undef SIGNAL
#define SIGNAL(a) REFUSED_BY_A_MACRO
#undef SLOT
#define SLOT(a) REFUSED_BY_A_MACRO
#undef METHOD
#define METHOD REFUSED_BY_A_MACRO
#undef qApp
#define qApp REFUSED_BY_A_MACRO
#undef Q_UNUSED
#define Q_UNUSED REFUSED_BY_A_MACRO
#undef Q_INVOKABLE
#define Q_INVOKABLE REFUSED_BY_A_MACRO
#undef Q_PROPERTY
#define Q_PROPERTY REFUSED_BY_A_MACRO
#undef Q_ENUM
#define Q_ENUM REFUSED_BY_A_MACRO
#undef Q_GADGET
#define Q_GADGET REFUSED_BY_A_MACRO
#undef tr
#define tr(a) REFUSED_BY_A_MACRO
#undef QT_VERSION
#define QT_VERSION REFUSED_BY_A_MACRO
#undef QT_CHECK_VERSION
#define QT_CHECK_VERSION REFUSED_BY_A_MACRO

/* X11. */
#undef None
#define None REFUSED_BY_A_MACRO
#undef True
#define True REFUSED_BY_A_MACRO
#undef False
#define False REFUSED_BY_A_MACRO
#undef Bool
#define Bool REFUSED_BY_A_MACRO
#undef Status
#define Status REFUSED_BY_A_MACRO
#undef Success
#define Success REFUSED_BY_A_MACRO
#undef Always
#define Always REFUSED_BY_A_MACRO
#undef Above
#define Above REFUSED_BY_A_MACRO
#undef Below
#define Below REFUSED_BY_A_MACRO
#undef Absolute
#define Absolute REFUSED_BY_A_MACRO
#undef Relative
#define Relative REFUSED_BY_A_MACRO
#undef Complex
#define Complex REFUSED_BY_A_MACRO
#undef Convex
#define Convex REFUSED_BY_A_MACRO
#undef Nonconvex
#define Nonconvex REFUSED_BY_A_MACRO
#undef Button1
#define Button1 REFUSED_BY_A_MACRO
#undef Button2
#define Button2 REFUSED_BY_A_MACRO
#undef ControlMask
#define ControlMask REFUSED_BY_A_MACRO
#undef CurrentTime
#define CurrentTime REFUSED_BY_A_MACRO
#undef CursorShape
#define CursorShape REFUSED_BY_A_MACRO
#undef Expose
#define Expose REFUSED_BY_A_MACRO
#undef FocusIn
#define FocusIn REFUSED_BY_A_MACRO
#undef FocusOut
#define FocusOut REFUSED_BY_A_MACRO
#undef GrayScale
#define GrayScale REFUSED_BY_A_MACRO
#undef KeyPress
#define KeyPress REFUSED_BY_A_MACRO
#undef KeyRelease
#define KeyRelease REFUSED_BY_A_MACRO
#undef LockMask
#define LockMask REFUSED_BY_A_MACRO
#undef NoSymbol
#define NoSymbol REFUSED_BY_A_MACRO
#undef Opposite
#define Opposite REFUSED_BY_A_MACRO
#undef ParentRelative
#define ParentRelative REFUSED_BY_A_MACRO
#undef Root
#define Root REFUSED_BY_A_MACRO
#undef Unsorted
#define Unsorted REFUSED_BY_A_MACRO
#undef StaticColor
#define StaticColor REFUSED_BY_A_MACRO
#undef Bad
#define Bad REFUSED_BY_A_MACRO
#undef BadRequest
#define BadRequest REFUSED_BY_A_MACRO
#undef BadValue
#define BadValue REFUSED_BY_A_MACRO
#undef BadAccess
#define BadAccess REFUSED_BY_A_MACRO
#undef BadAlloc
#define BadAlloc REFUSED_BY_A_MACRO
#undef YSorted
#define YSorted REFUSED_BY_A_MACRO
#undef CopyFromParent
#define CopyFromParent REFUSED_BY_A_MACRO
#undef PropertyNotify
#define PropertyNotify REFUSED_BY_A_MACRO
#undef NotUseful
#define NotUseful REFUSED_BY_A_MACRO
#undef WhenMapped
#define WhenMapped REFUSED_BY_A_MACRO
#undef DestroyAll
#define DestroyAll REFUSED_BY_A_MACRO
#undef RetainPermanent
#define RetainPermanent REFUSED_BY_A_MACRO
#undef InputOnly
#define InputOnly REFUSED_BY_A_MACRO
#undef DisplayString
#define DisplayString REFUSED_BY_A_MACRO
#undef ScreenCount
#define ScreenCount REFUSED_BY_A_MACRO
#undef ConnectionNumber
#define ConnectionNumber REFUSED_BY_A_MACRO
#undef ServerVendor
#define ServerVendor REFUSED_BY_A_MACRO
#undef Priv
#define Priv REFUSED_BY_A_MACRO

/* Windows. */
#undef min
#define min(a, b) REFUSED_BY_A_MACRO
#undef max
#define max(a, b) REFUSED_BY_A_MACRO
#undef near
#define near REFUSED_BY_A_MACRO
#undef far
#define far REFUSED_BY_A_MACRO
#undef small
#define small REFUSED_BY_A_MACRO
#undef hyper
#define hyper REFUSED_BY_A_MACRO
#undef interface
#define interface REFUSED_BY_A_MACRO
#undef uuid
#define uuid REFUSED_BY_A_MACRO
#undef pascal
#define pascal REFUSED_BY_A_MACRO
#undef cdecl
#define cdecl REFUSED_BY_A_MACRO
#undef IN
#define IN REFUSED_BY_A_MACRO
#undef OUT
#define OUT REFUSED_BY_A_MACRO
#undef OPTIONAL
#define OPTIONAL REFUSED_BY_A_MACRO
#undef CONST
#define CONST REFUSED_BY_A_MACRO
#undef VOID
#define VOID REFUSED_BY_A_MACRO
#undef ERROR
#define ERROR REFUSED_BY_A_MACRO
#undef NO_ERROR
#define NO_ERROR REFUSED_BY_A_MACRO
#undef DELETE
#define DELETE REFUSED_BY_A_MACRO
#undef IGNORE
#define IGNORE REFUSED_BY_A_MACRO
#undef STRICT
#define STRICT REFUSED_BY_A_MACRO
#undef RELATIVE
#define RELATIVE REFUSED_BY_A_MACRO
#undef ABSOLUTE
#define ABSOLUTE REFUSED_BY_A_MACRO
#undef DIFFERENCE
#define DIFFERENCE REFUSED_BY_A_MACRO
#undef CALLBACK
#define CALLBACK REFUSED_BY_A_MACRO
#undef WINAPI
#define WINAPI REFUSED_BY_A_MACRO
#undef APIENTRY
#define APIENTRY REFUSED_BY_A_MACRO
#undef TRUE
#define TRUE REFUSED_BY_A_MACRO
#undef FALSE
#define FALSE REFUSED_BY_A_MACRO
#undef THIS
#define THIS REFUSED_BY_A_MACRO
#undef THIS_
#define THIS_ REFUSED_BY_A_MACRO
#undef Yield
#define Yield REFUSED_BY_A_MACRO
#undef StrictBounds
#define StrictBounds REFUSED_BY_A_MACRO
#undef GetMessage
#define GetMessage REFUSED_BY_A_MACRO
#undef SendMessage
#define SendMessage REFUSED_BY_A_MACRO
#undef PostMessage
#define PostMessage REFUSED_BY_A_MACRO
#undef GetObject
#define GetObject REFUSED_BY_A_MACRO
#undef CreateFile
#define CreateFile REFUSED_BY_A_MACRO
#undef CreateProcess
#define CreateProcess REFUSED_BY_A_MACRO
#undef CreateWindow
#define CreateWindow REFUSED_BY_A_MACRO
#undef CreateMutex
#define CreateMutex REFUSED_BY_A_MACRO
#undef CreateEvent
#define CreateEvent REFUSED_BY_A_MACRO
#undef OpenEvent
#define OpenEvent REFUSED_BY_A_MACRO
#undef DrawText
#define DrawText REFUSED_BY_A_MACRO
#undef LoadImage
#define LoadImage REFUSED_BY_A_MACRO
#undef LoadLibrary
#define LoadLibrary REFUSED_BY_A_MACRO
#undef RegisterClass
#define RegisterClass REFUSED_BY_A_MACRO
#undef ReportEvent
#define ReportEvent REFUSED_BY_A_MACRO
#undef GetCurrentTime
#define GetCurrentTime REFUSED_BY_A_MACRO
#undef GetFreeSpace
#define GetFreeSpace REFUSED_BY_A_MACRO
#undef GetTickCount
#define GetTickCount REFUSED_BY_A_MACRO
#undef CopyMemory
#define CopyMemory REFUSED_BY_A_MACRO
#undef MoveMemory
#define MoveMemory REFUSED_BY_A_MACRO
#undef FillMemory
#define FillMemory REFUSED_BY_A_MACRO
#undef ZeroMemory
#define ZeroMemory REFUSED_BY_A_MACRO
#undef SearchPath
#define SearchPath REFUSED_BY_A_MACRO
#undef SetPort
#define SetPort REFUSED_BY_A_MACRO
#undef StartService
#define StartService REFUSED_BY_A_MACRO
#undef Polygon
#define Polygon REFUSED_BY_A_MACRO
#undef _T
#define _T(a) REFUSED_BY_A_MACRO
#undef TEXT
#define TEXT REFUSED_BY_A_MACRO
#undef ALTERNATE
#define ALTERNATE REFUSED_BY_A_MACRO
#undef COMPLEXREGION
#define COMPLEXREGION REFUSED_BY_A_MACRO
#undef NULLREGION
#define NULLREGION REFUSED_BY_A_MACRO
#undef TRANSPARENT
#define TRANSPARENT REFUSED_BY_A_MACRO
#undef OPAQUE
#define OPAQUE REFUSED_BY_A_MACRO
#undef INFINITE
#define INFINITE REFUSED_BY_A_MACRO
#undef NOMINMAX
#define NOMINMAX REFUSED_BY_A_MACRO
#undef MAXIMUM
#define MAXIMUM REFUSED_BY_A_MACRO
#undef INPUT_KEYBOARD
#define INPUT_KEYBOARD REFUSED_BY_A_MACRO
#undef UNIQUE_NAME
#define UNIQUE_NAME REFUSED_BY_A_MACRO
#undef PURE
#define PURE REFUSED_BY_A_MACRO
#undef ABOVE_NORMAL
#define ABOVE_NORMAL REFUSED_BY_A_MACRO

/* curses, GLib, and others. */
#undef timeout
#define timeout(a) REFUSED_BY_A_MACRO
#undef ERR
#define ERR REFUSED_BY_A_MACRO
#undef OK
#define OK REFUSED_BY_A_MACRO
#undef COLS
#define COLS REFUSED_BY_A_MACRO
#undef LINES
#define LINES REFUSED_BY_A_MACRO
#undef getch
#define getch REFUSED_BY_A_MACRO
#undef nodelay
#define nodelay REFUSED_BY_A_MACRO
#undef MIN
#define MIN REFUSED_BY_A_MACRO
#undef MAX
#define MAX REFUSED_BY_A_MACRO
#undef ABS
#define ABS REFUSED_BY_A_MACRO
#undef CLAMP
#define CLAMP REFUSED_BY_A_MACRO
#undef likely
#define likely REFUSED_BY_A_MACRO
#undef unlikely
#define unlikely REFUSED_BY_A_MACRO
#undef container_of
#define container_of REFUSED_BY_A_MACRO
#undef N_
#define N_ REFUSED_BY_A_MACRO
#undef Q_
#define Q_ REFUSED_BY_A_MACRO
#undef fallthrough
#define fallthrough REFUSED_BY_A_MACRO
#undef PACKED
#define PACKED REFUSED_BY_A_MACRO
#undef ALIGNED
#define ALIGNED REFUSED_BY_A_MACRO
#undef DEBUG
#define DEBUG REFUSED_BY_A_MACRO
#undef LOG
#define LOG REFUSED_BY_A_MACRO
#undef CHECK
#define CHECK REFUSED_BY_A_MACRO
#undef ASSERT
#define ASSERT REFUSED_BY_A_MACRO
#undef VERIFY
#define VERIFY REFUSED_BY_A_MACRO
#undef verify
#define verify REFUSED_BY_A_MACRO
#undef require
#define require REFUSED_BY_A_MACRO
#undef ENABLE
#define ENABLE REFUSED_BY_A_MACRO
#undef DISABLE
#define DISABLE REFUSED_BY_A_MACRO
