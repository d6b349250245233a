package run

import (
	"context"
	"time"

	"github.com/vishvananda/netlink"
)

// watchHost tells, coalesced by the inbox, that links, addresses or routes of the host changed. A subscription that
// breaks (its buffer ran over) is made again, and counts as a change.
func watchHost(ctx context.Context, b *inbox) {
	for ctx.Err() == nil {
		if err := watchHostOnce(ctx, b); err != nil {
			select {
			case <-ctx.Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
		b.put(func(m *mail) { m.host = true })
	}
}

func watchHostOnce(ctx context.Context, b *inbox) error {
	done := make(chan struct{})
	addresses, routes, links := make(chan netlink.AddrUpdate), make(chan netlink.RouteUpdate), make(chan netlink.LinkUpdate)
	defer func() {
		// The subscriptions end at their next event, which must not block them.
		close(done)
		go drain(addresses)
		go drain(routes)
		go drain(links)
	}()
	if err := netlink.AddrSubscribe(addresses, done); err != nil {
		return err
	}
	if err := netlink.RouteSubscribe(routes, done); err != nil {
		return err
	}
	if err := netlink.LinkSubscribe(links, done); err != nil {
		return err
	}
	for {
		var ok bool
		select {
		case <-ctx.Done():
			return nil
		case _, ok = <-addresses:
		case _, ok = <-routes:
		case _, ok = <-links:
		}
		if !ok {
			return nil
		}
		b.put(func(m *mail) { m.host = true })
	}
}

func drain[T any](c <-chan T) {
	for range c {
	}
}
