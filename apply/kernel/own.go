package kernel

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// OwnAddress is an address with Hairpin's protocol, on any link.
type OwnAddress struct {
	Link   int // index
	Prefix netip.Prefix
}

// OwnAddresses lists the addresses of the caller's network namespace that a Target added. They are
// not the machine's own addresses.
func OwnAddresses() (map[OwnAddress]bool, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
	req.AddData(nl.NewIfAddrmsg(unix.AF_UNSPEC))
	raw, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWADDR)
	list, err := parseAll(raw, err, parseAddress)
	if err != nil {
		return nil, fmt.Errorf("addresses: %w", err)
	}
	own := map[OwnAddress]bool{}
	for _, f := range list {
		if f.ours {
			own[OwnAddress{f.link, f.prefix}] = true
		}
	}
	return own, nil
}
