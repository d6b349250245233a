package kernel

import (
	"slices"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"hairpin/apply/notice"
	"hairpin/claims"
	"hairpin/datapath/host"
)

// Parts of netconf messages (linux/netconf.h).
const (
	sizeofNetconfmsg = 4 // family, padded
	netconfaIfindex  = 1
	allLinks         = -1
	defaultLinks     = -2
)

func (t *Target) listen() (*notice.Listener, error) {
	return notice.Listen(notice.Config{
		NetNS: t.config.NetNS, Protocol: unix.NETLINK_ROUTE, Relevant: t.relevant,
		Groups: []int{
			unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
			unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
			unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF,
		},
	})
}

// relevant reports whether a notification may concern something that Read returns. A message that
// cannot be parsed is relevant.
func (t *Target) relevant(m syscall.NetlinkMessage) bool {
	want := t.config.Wanted()
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return t.relevantLink(m.Data, &want)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		f, err := parseAddress(m.Data)
		return err != nil || !kernelMade(f.prefix.Addr())
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		return t.relevantNeighbor(m.Data, &want)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		f, err := parseRoute(m.Data)
		r, wanted := want.Routes[f.key]
		return err != nil || wanted && !r.Borrowed || f.protocol == claims.RouteProtocol
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		f, err := parseRule(m.Data)
		return err != nil || f.inRange()
	case unix.RTM_NEWNETCONF:
		return t.relevantSysctl(m.Data)
	}
	return false
}

func (t *Target) relevantLink(raw []byte, want *host.State) bool {
	attrs, err := attributes(raw, unix.SizeofIfInfomsg)
	if err != nil {
		return true
	}
	for _, a := range attrs {
		if a.Attr.Type == unix.IFLA_IFNAME {
			name := nl.BytesToString(a.Value)
			_, wanted := want.Links[name]
			return wanted || t.wasRelevant(int(number(raw[4:]))) || t.usesLink(name, want)
		}
	}
	return true
}

// usesLink reports whether a wanted object is on a link, or the link is Hairpin's.
func (t *Target) usesLink(name string, want *host.State) bool {
	if slices.Contains(t.config.Links, name) {
		return true
	}
	for k := range want.Addresses {
		if k.Link == name {
			return true
		}
	}
	for _, r := range want.Routes {
		if r.Link == name {
			return true
		}
	}
	return false
}

// relevantNeighbor reports whether a neighbour is permanent or wanted. Others change with the
// traffic.
func (t *Target) relevantNeighbor(raw []byte, want *host.State) bool {
	f, err := parseNeighbor(raw)
	if err != nil || f.permanent {
		return true
	}
	for k := range want.Neighbors {
		if k.IP == f.ip {
			return true
		}
	}
	return false
}

func (t *Target) relevantSysctl(raw []byte) bool {
	attrs, err := attributes(raw, sizeofNetconfmsg)
	if err != nil {
		return true
	}
	for _, a := range attrs {
		if a.Attr.Type == netconfaIfindex {
			i := int(int32(number(a.Value)))
			return i == allLinks || i == defaultLinks || t.wasRelevant(i)
		}
	}
	return false
}

// wasRelevant reports whether a link was relevant at the last Read.
func (t *Target) wasRelevant(index int) bool {
	m := t.indexes.Load()
	return m != nil && (*m)[index]
}
