#!/bin/sh
sort -o names names
