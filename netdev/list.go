package netdev

import (
	"errors"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// listTries is the largest number of tries of a listing that changes interrupt.
const listTries = 20

// List calls list, such as netlink.LinkList, and returns its result. If objects are added or
// removed meanwhile, as on a node where pods start, the kernel reports that the listing may be
// incomplete (NLM_F_DUMP_INTR). List then tries again.
func List[T any](list func() ([]T, error)) (all []T, err error) {
	for range listTries {
		all, err = list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return all, err
}

// Addresses lists the addresses of a link, or of all of them.
func Addresses(l netlink.Link) ([]netlink.Addr, error) {
	return List(func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_ALL) })
}
