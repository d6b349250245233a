package kernel

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/netdev"
)

// Routes says which routes to list.
type Routes struct {
	Link  int                       // index: routes through it, including those with several next hops; 0 = all
	Table int                       // 0 = all
	Keep  func(*netlink.Route) bool // nil = all
	Max   int                       // routes per family; 0 = all
}

// List returns routes of the caller's network namespace. Routes of one prefix are in the order of
// their metrics. The kernel filters by link, because other links may have a million routes of a
// routing daemon.
func (q Routes) List() (list []netlink.Route, err error) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := netdev.List(func() ([]netlink.Route, error) { return q.family(family) })
		if err != nil && !errors.Is(err, unix.ENOENT) { // ENOENT: there is no such table
			return nil, fmt.Errorf("list routes (link %d, table %d): %w", q.Link, q.Table, err)
		}
		list = append(list, routes...)
	}
	return list, nil
}

func (q Routes) family(family int) (list []netlink.Route, err error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	if err := h.SetStrictCheck(true); err != nil { // without it, the kernel lists all routes
		return nil, err
	}
	full := false
	err = h.RouteListFilteredIter(family, &netlink.Route{LinkIndex: q.Link, Table: q.Table}, netlink.RT_FILTER_TABLE,
		func(r netlink.Route) bool {
			if q.Keep == nil || q.Keep(&r) {
				list = append(list, r)
			}
			if full = q.Max > 0 && len(list) == q.Max; full {
				h.Close() // ends the listing, which would otherwise be read completely
			}
			return !full
		})
	if full {
		err = nil
	}
	return list, err
}
