// towline-controlplane is a Kubernetes control plane in one executable.
//
// Under the name kube-apiserver, etcd, kube-controller-manager or kubectl (by a
// symbolic link) it behaves as that program does, flags and all. The name may
// also be given as the first argument: `towline-controlplane kubectl version`.
//
// One executable instead of four because they share most of their code: it is
// linked once, and takes a third of the disk and of the build time.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // credential plugins in a kubeconfig
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // rest_client_* in /metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // kubernetes_build_info in /metrics
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

// exitUsage says that the caller asked for no program, or for one not in here.
const exitUsage = 2

func main() {
	name := filepath.Base(os.Args[0])
	if !isProgram(name) {
		// The programs read os.Args themselves, so they must not see our own name.
		os.Args = os.Args[1:]
		if len(os.Args) == 0 || !isProgram(os.Args[0]) {
			fmt.Fprintf(os.Stderr, "usage: %s kube-apiserver|etcd|kube-controller-manager|kubectl [argument...]\n", name)
			os.Exit(exitUsage)
		}
		name = os.Args[0]
	}
	run(name)
}

func isProgram(name string) bool {
	switch name {
	case "kube-apiserver", "etcd", "kube-controller-manager", "kubectl":
		return true
	}
	return false
}

// run becomes the named program. Each one follows its upstream main function.
func run(name string) {
	switch name {
	case "kube-apiserver":
		runServer(apiserver.NewAPIServerCommand)
	case "kube-controller-manager":
		runServer(controllermanager.NewControllerManagerCommand)
	case "etcd":
		etcdmain.Main(os.Args)
	case "kubectl":
		runKubectl()
	}
}

// runServer takes the constructor rather than the command, because a command
// registers its feature gates and metrics globally: only one may be made.
func runServer(newCommand func() *cobra.Command) {
	os.Exit(cli.Run(newCommand()))
}

func runKubectl() {
	// The verbosity has to be known before the command is built: building it
	// already looks for plugins and reads the user's preferences.
	_, _ = logs.GlogSetter(cmd.GetLogVerbosity(os.Args))
	if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err) // prints the error as kubectl does and exits
	}
}
