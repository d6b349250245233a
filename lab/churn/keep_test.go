package churn

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// keep opens connections from all places by all paths to one Service, in both families and
// protocols. It uses all of them again after each change that must not end them: of policies,
// affinity, type and port, and when endpoints terminate.
func (c *churn) keep(ctx context.Context) {
	s := c.services[0]
	everybody := func(v *version, of func(i int) state) {
		for family := range v.endpoints {
			v.endpoints[family] = nil
			for i, p := range c.servers {
				v.endpoints[family] = append(v.endpoints[family], endpoint{p, of(i)})
			}
		}
	}
	v := version{there: true, kind: "LoadBalancer", port: 80, external: true}
	everybody(&v, func(int) state { return ready })
	for _, first := range []func(*version){
		func(*version) {},
		func(v *version) { v.etp, v.itp = true, true },
	} {
		first(&v)
		c.write(ctx, s, v)
		time.Sleep(caching)
		list := c.open(ctx, s)
		for _, f := range []func(*version){
			func(v *version) { v.etp = !v.etp },
			func(v *version) { v.itp = !v.itp },
			func(v *version) { v.affinity = 10800 - v.affinity },
			func(v *version) { everybody(v, func(i int) state { return state(i % 2) }) }, // every other one terminates
			func(v *version) { everybody(v, func(i int) state { return terminating }) },
			func(v *version) { v.port = 161 - v.port },
			func(v *version) { v.kind, v.external = "NodePort", false },
		} {
			f(&v)
			c.write(ctx, s, v)
			c.alive(list)
		}
		time.Sleep(caching) // the last change has reached all caches
		c.alive(list)
		for _, h := range list {
			_ = h.conn.Close()
		}
		v.kind, v.external = "LoadBalancer", true
		everybody(&v, func(int) state { return ready })
	}
	if err := c.remove(ctx, s); err != nil {
		c.t.Fatal(err)
	}
	c.rest(ctx)
}

// write writes a version, and waits until it is in effect everywhere.
func (c *churn) write(ctx context.Context, s *service, v version) {
	c.t.Helper()
	do := c.update
	if !s.now().there {
		do = c.make
	}
	if err := do(ctx, s, v); err != nil {
		c.t.Fatal(err)
	}
	for family := range v.endpoints {
		if err := c.writeSlice(ctx, s, v, family); err != nil {
			c.t.Fatal(err)
		}
	}
	c.rest(ctx)
}

// open opens one connection of each kind.
func (c *churn) open(ctx context.Context, s *service) []*held {
	var list []*held
	var mu sync.Mutex
	var all sync.WaitGroup
	v, oldest := s.now(), s.oldest()
	for _, from := range c.places {
		all.Go(func() {
			for family := range 2 {
				for _, w := range c.ways(s, from, family) {
					if a := w.expect(v, from, family); len(a.by) == 0 {
						continue
					}
					for _, protocol := range []string{"tcp", "udp"} {
						h := &held{protocol: protocol, from: from, s: s, w: w, family: family, oldest: oldest,
							begin: time.Now(), to: w.to(v).String(), bridged: w.remote && c.mode(w.node) == "shared"}
						err := h.open(ctx)
						mu.Lock()
						if err == nil {
							list = append(list, h)
						} else {
							c.t.Errorf("%s from %s to %s (%s at %s): %v\n%s", protocol, from.Name(), h.to, w.kind,
								w.node, err, v)
						}
						mu.Unlock()
					}
				}
			}
		})
	}
	all.Wait()
	c.longs.Add(int64(len(list)))
	return list
}

// alive uses all connections that must live.
func (c *churn) alive(list []*held) {
	var all sync.WaitGroup
	for _, h := range list {
		if h.over || !h.must() {
			h.over = true
			continue
		}
		all.Go(func() {
			if err := h.alive(); err != nil {
				c.fault(h.begin, h.ended(err))
				h.over = true
				return
			}
			c.pings.Add(1)
		})
	}
	all.Wait()
	n := 0
	for _, h := range list {
		if !h.over {
			n++
		}
	}
	c.say("%d connections live", n)
}

// ended describes a connection that has ended.
func (h *held) ended(err error) string {
	text := fmt.Sprintf("a %s connection from %s (%s) to %s (%s at %s) with %s, %v old, has ended: %v", h.protocol,
		h.from.Name(), h.conn.LocalAddr(),
		h.to, h.w.kind, h.w.node, h.by, time.Since(h.begin).Round(time.Millisecond), err)
	for _, v := range h.s.since(h.oldest) {
		text += "\n  " + h.s.name() + " " + v.String()
	}
	return text
}
