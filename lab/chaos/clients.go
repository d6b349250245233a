package chaos

import (
	"cmp"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"hairpin/lab"
	"hairpin/lab/attack"
	"hairpin/lab/cluster"
	"hairpin/lab/probe"
)

// since returns the time since the start of the run.
func (r *run) since() time.Duration { return time.Since(r.begin) }

// clients opens connections until ctx ends, waits for the last ones, and closes those that it kept.
func (r *run) clients(ctx context.Context) {
	var all sync.WaitGroup
	for i, c := range r.connections {
		all.Go(func() {
			defer func() {
				for to := range c.sessions {
					c.close(to)
				}
			}()
			random := rand.New(rand.NewPCG(r.opt.Seed, uint64(i)))
			for turn := 0; ; turn++ {
				sleep(ctx, jitter(random, c.every/2, c.every*3/2))
				if ctx.Err() != nil {
					return
				}
				r.connectOnce(context.WithoutCancel(ctx), i, c, c.to[turn%len(c.to)])
			}
		})
	}
	all.Wait()
}

// clientPlace finds the network namespace of clients and remembers it. That of a pod is another one
// after its node has rebooted.
type clientPlace struct {
	find  func(context.Context) (lab.Place, error)
	mu    sync.Mutex
	found lab.Place
}

// place returns the place, or nil if its host or pod does not run.
func (s *clientPlace) place(ctx context.Context) lab.Place {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.found == nil {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		s.found, _ = s.find(ctx) // if the API server does not answer, the next connection tries again
	}
	return s.found
}

// forget makes the next connection look for the place again.
func (s *clientPlace) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.found = nil
}

// connectOnce opens a connection, or uses the one that is open, and records the result. There is
// none if the client's pod does not run.
func (r *run) connectOnce(ctx context.Context, path int, c *connection, to netip.AddrPort) {
	place := c.from.place(ctx)
	if place == nil {
		return
	}
	begin := r.since()
	kept := c.sessions[to]
	a := c.exchange(ctx, place, to)
	if kept != nil && a.Error != "" { // it may have broken at any time since its last echo
		begin = kept.Last.Sub(r.begin)
	}
	if strings.Contains(a.Error, "network namespace") { // lab.Do: the node or its pod has ended
		c.from.forget()
		return
	}
	result := Result{Path: path, At: begin, Took: r.since() - begin, To: to, Error: a.Error, Server: a.Name,
		Saw: a.Saw.Addr().Unmap()}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.results = append(r.results, result)
	if what := violated(&c.Path, &result); what != "" && what != failed {
		r.progress("%s: %s: %s", c.Name, what, result.describe())
	}
	r.explainInBackground(c, &result)
}

// exchange opens a connection and returns the server's greeting. If the connection is already open,
// exchange waits for an echo on it, and returns its greeting again.
func (c *connection) exchange(ctx context.Context, from lab.Place, to netip.AddrPort) (a probe.Answer) {
	request := probe.Request{Protocol: "tcp", To: to, Timeout: c.limit}
	if !c.keepsOpen {
		return lab.Get(ctx, from, request)
	}
	s := c.sessions[to]
	var err error
	if s != nil {
		err = s.Echo(c.limit)
	} else {
		err = lab.Do(from, func() (err error) {
			s, err = probe.Open(ctx, request)
			return err
		})
	}
	if err != nil {
		c.close(to)
		return probe.Answer{Error: err.Error()}
	}
	c.sessions[to] = s
	return probe.Answer{Greeting: s.Greeting}
}

// close closes the connection to an address if there is one.
func (c *connection) close(to netip.AddrPort) {
	if s := c.sessions[to]; s != nil {
		s.Close()
		delete(c.sessions, to)
	}
}

const (
	arpEvery = 500 * time.Millisecond
	arpWait  = 200 * time.Millisecond
)

// watchARP sends ARP requests for an address until ctx ends, and records when several machines
// answer.
func (r *run) watchARP(ctx context.Context, a netip.Addr) error {
	at := r.cluster.Lab().Host(cluster.ClientName)
	own, err := attack.MAC(at, "eth0")
	if err != nil {
		return err
	}
	request := attack.ARPRequest(own, r.addresses(cluster.ClientName)[0], a)
	machines := map[string]string{}
	for _, n := range r.cluster.Lab().Nodes() {
		mac, err := attack.MAC(n, "eth0")
		if err != nil {
			return err
		}
		machines[mac.String()] = n.Name()
	}
	var shared *Shared
	for ctx.Err() == nil {
		answers, err := arpReplies(ctx, at, request, a)
		if err != nil {
			return err
		}
		if shared != nil && len(answers) < 2 {
			r.addShared(*shared)
			shared = nil
		}
		if shared == nil && len(answers) > 1 {
			shared = &Shared{Address: a, From: r.since()}
		}
		if shared != nil {
			shared.To = r.since()
			for _, mac := range answers {
				if n := cmp.Or(machines[mac], mac); !slices.Contains(shared.Nodes, n) {
					shared.Nodes = append(shared.Nodes, n)
				}
			}
		}
		sleep(ctx, arpEvery)
	}
	if shared != nil {
		r.addShared(*shared)
	}
	return nil
}

// addShared records a time in which several nodes answered for an address.
func (r *run) addShared(s Shared) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shared = append(r.shared, s)
}

// arpReplies sends a request and returns the MACs that answer.
func arpReplies(ctx context.Context, at lab.Place, request []byte, a netip.Addr) (list []string, err error) {
	listener, err := attack.Listen(at, "eth0")
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	if err := attack.Send(at, "eth0", request); err != nil {
		return nil, err
	}
	for end := time.Now().Add(arpWait); time.Now().Before(end); {
		listener.Hear(ctx, time.Until(end), func(b []byte) bool {
			const arp, reply = 0x0806, 2
			if len(b) < 42 || binary.BigEndian.Uint16(b[12:]) != arp || binary.BigEndian.Uint16(b[20:]) != reply {
				return false
			}
			mac := net.HardwareAddr(b[22:28]).String()
			if netip.AddrFrom4([4]byte(b[28:32])) == a && !slices.Contains(list, mac) {
				list = append(list, mac)
			}
			return false
		})
	}
	return list, nil
}
