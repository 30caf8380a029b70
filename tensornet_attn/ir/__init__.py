"""The data structures that all layers share: arithmetic trees and the steps of a diagram."""
