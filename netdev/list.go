package netdev

import (
	"errors"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// listTries is how often a listing is begun anew when something comes or goes meanwhile.
const listTries = 20

// List gives what list gives, such as netlink.LinkList. What comes or goes while the kernel lists
// the rest makes it say that the listing may lack something (NLM_F_DUMP_INTR), as on a node where
// pods start: then it is begun anew.
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
