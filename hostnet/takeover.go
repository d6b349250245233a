package hostnet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"hairpin/cluster"
	"hairpin/datapath/nft"
	"hairpin/hostnet/uplink"
)

const (
	takeOverWait = 30 * time.Second // limits the wait for Open vSwitch
	takeOverTime = 20 * time.Second // limits the take-over, which probes gateways
)

// TakeOver returns the network of another program's gateway bridge to its device, if the
// administrator wants that. It runs before anything else on the node, so that nothing misses its
// changes. A take-over that failed and was undone is reported, and not retried by this agent.
func (sc *Scanner) TakeOver(ctx context.Context) {
	if !sc.config.Process.TakeOver || cluster.ModeNamed(sc.config.Cluster.Gateway.Mode).Uplink {
		return
	}
	did, err := sc.takeOver(ctx)
	for _, what := range did {
		sc.log.Info("took over the gateway bridge", "did", what)
	}
	if err != nil {
		sc.log.Warn("take over the gateway bridge", "error", err)
	}
	sc.takeOverErr = err
}

func (sc *Scanner) takeOver(ctx context.Context) (did []string, err error) {
	limited, cancel := context.WithTimeout(ctx, takeOverWait)
	defer cancel()
	if err := sc.ovs.WaitSynced(limited); err != nil {
		return nil, err
	}
	f, err := uplink.FindForeign(sc.ovs, UplinkConfig(sc.config))
	switch {
	case err != nil || f == nil:
		return nil, err
	case f.Refusal == nil && f.NetworkManager:
		return nil,
			errors.New("NetworkManager made it and would make it again: run `hairpin preflight --fix` on the node")
	}
	if err := sc.removeBlock(ctx); err != nil {
		return nil, err
	}
	// the end of ctx does not interrupt it
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), takeOverTime)
	defer stop()
	return f.GiveBack(ctx)
}

// removeBlock removes all nft chains of the family netdev: the one that blocks the uplink.
func (sc *Scanner) removeBlock(ctx context.Context) error {
	have, err := sc.nft.Read(ctx)
	if err != nil {
		return fmt.Errorf("nft: %w", err)
	}
	want := maps.Clone(have)
	delete(want, nft.Netdev)
	return sc.nft.Apply(ctx, nft.Diff(want, have))
}
